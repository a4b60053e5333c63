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
  hello.node = "rack 3/7";
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
  EXPECT_EQ(actual.node, expected.node);
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

Welcome ExampleWelcome() { return {2, ExampleEndpoint(), {17, 18, 4}, {0, 1, 0, 2, 1}}; }
/// Of `ExampleWelcome()`, for the numbers of its nodes to fit.
constexpr int kSize = 5;

Status Decoded(const Welcome& welcome, int size) {
  return DecodeWelcome(EncodeWelcome(welcome), size).status();
}

TEST(WelcomeMessage, RoundTrips) {
  Welcome example = ExampleWelcome();
  example.children = {3, 4};
  const Welcome alone{-1, Endpoint{65535, std::vector<IpAddress>(3)}, {}, {}};
  for (const Welcome& welcome : {example, alone}) {
    const auto decoded = DecodeWelcome(EncodeWelcome(welcome), kSize);
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded->parent_rank, welcome.parent_rank);
    ExpectEqual(decoded->parent, welcome.parent);
    EXPECT_EQ(decoded->children, welcome.children);
    EXPECT_EQ(decoded->node_of, welcome.node_of);
  }
}

TEST(WelcomeMessage, CutOffAtAnyLengthOrWithMoreBehindItIsMalformed) {
  Welcome welcome = ExampleWelcome();
  welcome.children = {3, 4};
  Bytes bytes = EncodeWelcome(welcome);
  const std::size_t without_nodes = bytes.size() - 4 * kSize;  // a whole one, too
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    if (size != without_nodes)
      ExpectMalformed(DecodeWelcome(ByteView(bytes).first(size), kSize).status(),
                      size < without_nodes ? "welcome" : "tree");
  }
  bytes.push_back(0);
  ExpectMalformed(DecodeWelcome(bytes, kSize).status(), "tree");
}

TEST(WelcomeMessage, RanksOutsideTheWorldAreMalformed) {
  for (const int parent : {-2, kSize, INT32_MAX})
    ExpectMalformed(Decoded({parent, {}, {}, {}}, kSize), "welcome");
  for (const int child : {-1, 0, kSize, INT32_MIN})
    ExpectMalformed(Decoded({-1, {}, {1, child}, {}}, kSize), "welcome");
  ExpectMalformed(Decoded({-1, {}, std::vector<int>(17, 1), {}}, kSize), "welcome");
}

TEST(WelcomeMessage, NodesThatAreNotNumberedInOrderAreMalformed) {
  for (const std::vector<std::uint32_t>& node_of :
       {std::vector<std::uint32_t>{1, 0, 0, 0, 0}, {0, 2, 1, 0, 0}, {0, 1, 2, 3, UINT32_MAX}})
    ExpectMalformed(Decoded({-1, {}, {}, node_of}, kSize), "tree");
}

TEST(WelcomeMessage, MoreAddressesThanThereCanBeAreMalformed) {
  ExpectMalformed(Decoded({-1, {1, std::vector<IpAddress>(4)}, {}, {}}, kSize), "welcome");
}

TEST(WelcomeMessage, AnAddressOfAnotherFamilyIsMalformed) {
  Bytes bytes = EncodeWelcome({1, ExampleEndpoint(), {}, {}});
  bytes[7] = 9;  // behind rank, port and count
  ExpectMalformed(DecodeWelcome(bytes, kSize).status(), "welcome");
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
