#include "bootstrap/rendezvous_messages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

using testing::Address;

Endpoint ExampleEndpoint() { return {4711, {Address("10.1.2.3"), Address("fd00::2")}}; }

Hello ExampleHello() {
  Hello hello;
  hello.rank = 3;
  hello.size = 8;
  hello.version = "1.2.3";
  hello.host = "node7";
  hello.process_id = 4'000'000'000;
  hello.failure = "no room";
  hello.budget = std::chrono::milliseconds(5'000'000'000);
  hello.waited = std::chrono::milliseconds(4'000'000'000);
  hello.endpoint = ExampleEndpoint();
  return hello;
}

void ExpectEqual(const Endpoint& actual, const Endpoint& expected) {
  EXPECT_EQ(actual.port, expected.port);
  EXPECT_EQ(actual.addresses, expected.addresses);
}

void ExpectEqual(const Hello& actual, const Hello& expected) {
  EXPECT_EQ(actual.rank, expected.rank);
  EXPECT_EQ(actual.size, expected.size);
  EXPECT_EQ(actual.version, expected.version);
  EXPECT_EQ(actual.host, expected.host);
  EXPECT_EQ(actual.process_id, expected.process_id);
  EXPECT_EQ(actual.failure, expected.failure);
  EXPECT_EQ(actual.budget, expected.budget);
  EXPECT_EQ(actual.waited, expected.waited);
  ExpectEqual(actual.endpoint, expected.endpoint);
}

void ExpectMalformed(const Status& status, const std::string& what) {
  EXPECT_EQ(status.code(), ErrorCode::kMismatch);
  EXPECT_EQ(status.message(), "a " + what + " message of the bootstrap is malformed");
}

TEST(Hello, RoundTrips) {
  Hello nothing;
  Hello odd = ExampleHello();
  odd.rank = -5;
  odd.size = INT32_MIN;
  for (const Hello& hello : {ExampleHello(), nothing, odd}) {
    const auto decoded = DecodeHello(EncodeHello(hello));
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    ExpectEqual(*decoded, hello);
  }
}

TEST(Hello, OfAnotherProtocolVersionIsReadAsFarAsAllAgree) {
  Hello newer = ExampleHello();
  newer.protocol = 77;
  Bytes bytes = EncodeHello(newer);
  bytes.insert(bytes.end(), {1, 2, 3});
  for (const std::size_t size : {bytes.size(), bytes.size() - 20}) {
    const auto decoded = DecodeHello(ByteView(bytes).first(size));
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded->protocol, 77u);
    EXPECT_EQ(decoded->rank, newer.rank);
    EXPECT_EQ(decoded->size, newer.size);
    EXPECT_EQ(decoded->version, newer.version);
    EXPECT_EQ(decoded->host, newer.host);
    EXPECT_EQ(decoded->process_id, newer.process_id);
    EXPECT_EQ(decoded->endpoint.port, 0);
  }
  EXPECT_FALSE(DecodeHello(ByteView(bytes).first(16)).ok());
}

TEST(FailureMessage, RoundTrips) {
  for (const int suspect : {-1, 0, 12}) {
    const Failure failure =
        DecodeFailure(EncodeFailure({Error(ErrorCode::kSystem, "no room"), suspect}));
    EXPECT_EQ(failure.suspect, suspect);
    EXPECT_EQ(failure.status.code(), ErrorCode::kSystem);
    EXPECT_EQ(failure.status.message(), "no room");
  }
  EXPECT_EQ(DecodeFailure(EncodeFailure({Error(ErrorCode::kSystem, "x"), 1 << 30})).suspect, -1);
  for (const Bytes& malformed : {Bytes{1, 2}, Bytes{1, 0, 0, 0, 9}}) {
    EXPECT_EQ(DecodeFailure(malformed).status.code(), ErrorCode::kMismatch);
    EXPECT_EQ(DecodeFailure(malformed).suspect, -1);
  }
}

TEST(Hello, CutOffAtAnyLengthOrWithMoreBehindItIsMalformed) {
  Bytes bytes = EncodeHello(ExampleHello());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    ExpectMalformed(DecodeHello(ByteView(bytes).first(size)).status(), "hello");
  bytes.push_back(0);
  ExpectMalformed(DecodeHello(bytes).status(), "hello");
}

TEST(Hello, ANegativeBudgetIsMalformed) {
  Hello hello = ExampleHello();
  hello.budget = std::chrono::milliseconds(-1);
  ExpectMalformed(DecodeHello(EncodeHello(hello)).status(), "hello");
}

TEST(Hello, ALongFailureIsCutAndAnOverlongHostIsMalformed) {
  Hello hello = ExampleHello();
  hello.failure = std::string(5000, 'f');
  const auto cut = DecodeHello(EncodeHello(hello));
  ASSERT_TRUE(cut.ok()) << cut.status().message();
  EXPECT_EQ(cut->failure, std::string(4096, 'f'));
  hello.host = std::string(4097, 'h');
  ExpectMalformed(DecodeHello(EncodeHello(hello)).status(), "hello");
}

TEST(EndpointMessage, RoundTrips) {
  for (const Endpoint& endpoint :
       {ExampleEndpoint(), Endpoint{}, Endpoint{65535, std::vector<IpAddress>(3)}}) {
    const auto decoded = DecodeEndpoint(EncodeEndpoint(endpoint));
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    ExpectEqual(*decoded, endpoint);
  }
}

TEST(EndpointMessage, CutOffAtAnyLengthOrWithMoreBehindItIsMalformed) {
  Bytes bytes = EncodeEndpoint(ExampleEndpoint());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    ExpectMalformed(DecodeEndpoint(ByteView(bytes).first(size)).status(), "welcome");
  bytes.push_back(0);
  ExpectMalformed(DecodeEndpoint(bytes).status(), "welcome");
}

TEST(EndpointMessage, MoreAddressesThanThereCanBeAreMalformed) {
  const Endpoint many{1, std::vector<IpAddress>(4)};
  ExpectMalformed(DecodeEndpoint(EncodeEndpoint(many)).status(), "welcome");
}

TEST(EndpointMessage, AnAddressOfAnotherFamilyIsMalformed) {
  Bytes bytes = EncodeEndpoint(ExampleEndpoint());
  bytes[3] = 9;  // behind port and count
  ExpectMalformed(DecodeEndpoint(bytes).status(), "welcome");
}

TEST(StatusMessage, EveryErrorRoundTrips) {
  for (int code = 1; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    const Status sent(static_cast<ErrorCode>(code), "what went wrong");
    const Status received = DecodeStatus(EncodeStatus(sent));
    EXPECT_EQ(received.code(), sent.code());
    EXPECT_EQ(received.message(), sent.message());
  }
}

TEST(StatusMessage, ALongTextIsCut) {
  const Status received =
      DecodeStatus(EncodeStatus(Status(ErrorCode::kSystem, std::string(5000, 'x'))));
  EXPECT_EQ(received.code(), ErrorCode::kSystem);
  EXPECT_EQ(received.message(), std::string(4096, 'x'));
}

TEST(StatusMessage, IsNeverASuccess) { ExpectMalformed(DecodeStatus(EncodeStatus({})), "status"); }

TEST(StatusMessage, UnknownCodesAreMalformed) {
  for (const std::int32_t code : {-1, 12, INT32_MAX, INT32_MIN})
    ExpectMalformed(DecodeStatus(ByteWriter().Int(code).Text("text").bytes()), "status");
}

TEST(StatusMessage, CutOffAtAnyLengthOrWithMoreBehindItIsMalformed) {
  Bytes bytes = EncodeStatus(Status(ErrorCode::kSystem, "text"));
  for (std::size_t size = 0; size < bytes.size(); ++size)
    ExpectMalformed(DecodeStatus(ByteView(bytes).first(size)), "status");
  bytes.push_back(0);
  ExpectMalformed(DecodeStatus(bytes), "status");
}

}  // namespace
}  // namespace mori::shmem
