#include "bootstrap/unique_id.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

using testing::Address;

Rendezvous Example() {
  Rendezvous rendezvous = NewRendezvous();
  rendezvous.port = 12345;
  rendezvous.addresses = {Address("10.1.2.3"), Address("2001:db8::1"), Address("127.0.0.1")};
  return rendezvous;
}

/// As someone who knows the format would forge it.
void FixChecksum(UniqueId* id) {
  std::uint8_t hash[crypto_generichash_BYTES];
  crypto_generichash(hash, sizeof hash, id->bytes, 120, nullptr, 0);
  std::memcpy(id->bytes + 120, hash, 8);
}

Status Refusal(const UniqueId& id) { return DecodeUniqueId(id).status(); }

TEST(UniqueIdTest, RoundTrips) {
  for (std::size_t count = 1; count <= 3; ++count) {
    Rendezvous rendezvous = Example();
    rendezvous.addresses.resize(count);
    const auto decoded = DecodeUniqueId(EncodeUniqueId(rendezvous));
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded->name, rendezvous.name);
    EXPECT_EQ(decoded->secret, rendezvous.secret);
    EXPECT_EQ(decoded->port, rendezvous.port);
    EXPECT_EQ(decoded->addresses, rendezvous.addresses);
  }
}

TEST(UniqueIdTest, LaysItsFieldsOutAsDocumented) {
  const Rendezvous rendezvous = Example();
  const UniqueId id = EncodeUniqueId(rendezvous);
  EXPECT_EQ(std::memcmp(id.bytes, "MORI", 4), 0);
  EXPECT_EQ(id.bytes[4], 1) << "format version";
  EXPECT_EQ(id.bytes[5], 0);
  EXPECT_EQ(id.bytes[6] | id.bytes[7] << 8, 12345);
  EXPECT_EQ(std::memcmp(id.bytes + 8, rendezvous.name.data(), 16), 0);
  EXPECT_EQ(std::memcmp(id.bytes + 24, rendezvous.secret.data(), 32), 0);
  EXPECT_EQ(id.bytes[56], 3) << "number of addresses";
  EXPECT_EQ(id.bytes[60], 4) << "family of the first address";
  EXPECT_EQ(id.bytes[64], 10);
  EXPECT_EQ(id.bytes[80], 6) << "family of the second address";
}

TEST(UniqueIdTest, EveryRendezvousIsDifferent) {
  std::set<RendezvousName> names;
  std::set<Secret> secrets;
  for (int i = 0; i < 100; ++i) {
    const Rendezvous rendezvous = NewRendezvous();
    names.insert(rendezvous.name);
    secrets.insert(rendezvous.secret);
  }
  EXPECT_EQ(names.size(), 100u);
  EXPECT_EQ(secrets.size(), 100u);
}

TEST(UniqueIdTest, BytesOfSomethingElseAreNoId) {
  UniqueId zeros{};
  EXPECT_EQ(Refusal(zeros).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Refusal(zeros).message(),
            "these 128 bytes are no unique id: they must come from shmem_get_unique_id()");
  UniqueId other = EncodeUniqueId(Example());
  other.bytes[0] = 'm';
  EXPECT_EQ(Refusal(other).message(), Refusal(zeros).message());
}

TEST(UniqueIdTest, AnotherFormatVersionIsNamed) {
  for (const std::uint8_t version : {0, 2, 255}) {
    UniqueId id = EncodeUniqueId(Example());
    id.bytes[4] = version;
    FixChecksum(&id);
    EXPECT_EQ(Refusal(id).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(Refusal(id).message(),
              fmt::format("the unique id has format version {}, this library reads 1: all PEs need "
                          "the same version of the library",
                          version));
  }
}

TEST(UniqueIdTest, EverySingleDamagedByteIsNoticed) {
  const UniqueId id = EncodeUniqueId(Example());
  for (std::size_t i = 0; i < UniqueId::kBytes; ++i) {
    for (const std::uint8_t flip : {0x01, 0x80, 0xff}) {
      UniqueId damaged = id;
      damaged.bytes[i] ^= flip;
      const Status refusal = Refusal(damaged);
      EXPECT_EQ(refusal.code(), ErrorCode::kInvalidArgument) << "byte " << i;
      if (i > 4) {
        EXPECT_EQ(refusal.message(),
                  "the unique id is damaged: its checksum does not fit its bytes; carry all 128 "
                  "bytes unchanged")
            << "byte " << i;
      }
    }
  }
}

TEST(UniqueIdTest, CountsAndPortsOutOfRangeAreRefusedDespiteTheirChecksum) {
  struct Row {
    std::size_t offset;
    std::uint8_t value;
    const char* message;
  };
  for (const Row& row :
       {Row{56, 0, "the unique id holds 0 addresses and port 12345: it cannot be used"},
        Row{56, 4, "the unique id holds 4 addresses and port 12345: it cannot be used"},
        Row{56, 255, "the unique id holds 255 addresses and port 12345: it cannot be used"},
        Row{59, 255, "the unique id holds 4278190083 addresses and port 12345: it cannot be used"},
        Row{60, 5, "the unique id holds an address of an unknown family"},
        Row{80, 0, "the unique id holds an address of an unknown family"},
        Row{103, 1, "the unique id holds an address of an unknown family"}}) {
    UniqueId id = EncodeUniqueId(Example());
    id.bytes[row.offset] = row.value;
    FixChecksum(&id);
    EXPECT_EQ(Refusal(id).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(Refusal(id).message(), row.message) << "byte " << row.offset;
  }
  Rendezvous rendezvous = Example();
  rendezvous.port = 0;
  EXPECT_EQ(Refusal(EncodeUniqueId(rendezvous)).message(),
            "the unique id holds 3 addresses and port 0: it cannot be used");
}

TEST(UniqueIdTest, OfAProcessThatNobodyCanCallRoundTrips) {
  Rendezvous rendezvous = Example();
  rendezvous.addresses.clear();
  rendezvous.port = 0;
  const auto decoded = DecodeUniqueId(EncodeUniqueId(rendezvous));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_TRUE(decoded->addresses.empty());
  EXPECT_EQ(decoded->name, rendezvous.name);
}

TEST(UniqueIdTest, HexRoundTrips) {
  const UniqueId id = EncodeUniqueId(Example());
  const std::string hex = UniqueIdToHex(id);
  EXPECT_EQ(hex.size(), 256u);
  EXPECT_EQ(hex.substr(0, 10), "4d4f524901");
  EXPECT_EQ(hex.find_first_not_of("0123456789abcdef"), std::string::npos);
  const auto back = UniqueIdFromHex(hex);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_TRUE(std::ranges::equal(back->bytes, id.bytes));

  std::string upper = hex;
  std::ranges::transform(upper, upper.begin(), [](char c) { return std::toupper(c); });
  const auto from_upper = UniqueIdFromHex(upper);
  ASSERT_TRUE(from_upper.ok());
  EXPECT_TRUE(std::ranges::equal(from_upper->bytes, id.bytes));
}

TEST(UniqueIdTest, AnythingButHexOfItsLengthIsRefused) {
  const std::string hex = UniqueIdToHex(EncodeUniqueId(Example()));
  for (const std::string& text :
       {std::string(), std::string("4d"), hex.substr(1), hex.substr(2), hex + "0", hex + "00",
        hex.substr(0, 255) + "g", "x" + hex.substr(1), hex.substr(0, 254) + " 0",
        std::string(256, '\0')}) {
    const auto id = UniqueIdFromHex(text);
    ASSERT_FALSE(id.ok()) << text;
    EXPECT_EQ(id.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(id.status().message(),
              fmt::format("expected 256 hexadecimal digits of a unique id, got {} characters",
                          text.size()));
  }
}

}  // namespace
}  // namespace mori::shmem
