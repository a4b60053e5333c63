// Messages of the network: what is written comes back, and what is no message is refused.
#include "transport/ofi/wire.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/word_atomic.hpp"
#include "transport/ofi/regions.hpp"

namespace mori::shmem::ofi {
namespace {

using detail::AtomicOp;

class Wire : public ::testing::Test {
 protected:
  std::span<const std::byte> Finished() {
    writer_.Finish({11, 22, 33, 44, 0});
    return {bytes_, writer_.used()};
  }
  std::vector<Record> Read() {
    MessageReader reader(Finished());
    std::vector<Record> records;
    while (auto record = reader.Next()) records.push_back(*record);
    EXPECT_TRUE(reader.ok());
    return records;
  }

  alignas(64) std::byte bytes_[kMessageBytes];
  MessageWriter writer_{bytes_};
};

TEST_F(Wire, AHeaderComesBack) {
  EXPECT_TRUE(writer_.is_empty());
  const MessageReader reader(Finished());
  ASSERT_TRUE(reader.header());
  EXPECT_EQ(reader.header()->token, 11u);
  EXPECT_EQ(reader.header()->number, 22u);
  EXPECT_EQ(reader.header()->applied, 33u);
  EXPECT_EQ(reader.header()->from, 44u);
}

TEST_F(Wire, DataIsAlignedAsAtItsPlace) {
  const std::string text = "0123456789abcdef";
  for (std::uint64_t address = 1000; address < 1016; ++address) {
    MessageWriter writer(bytes_);
    writer.Put(5, address, text.data(), text.size());
    writer.Finish({});
    MessageReader reader({bytes_, writer.used()});
    const auto record = reader.Next();
    ASSERT_TRUE(record);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(record->data) % 8, address % 8);
    EXPECT_EQ(std::memcmp(record->data, text.data(), text.size()), 0);
    EXPECT_FALSE(reader.Next());
  }
}

TEST_F(Wire, PutsSideBySideAreOneRecord) {
  const std::uint64_t values[] = {1, 2, 3, 4};
  writer_.Put(5, 64, &values[0], 8);
  writer_.Put(5, 72, &values[1], 8);
  writer_.Put(6, 80, &values[2], 8);  // of another key
  writer_.EndRun();
  writer_.Put(6, 88, &values[3], 8);  // behind a fence
  const auto records = Read();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].header.bytes, 16u);
  EXPECT_EQ(records[0].Word(0), 1u);
  EXPECT_EQ(records[0].Word(1), 2u);
  EXPECT_EQ(records[1].header.key, 6u);
  EXPECT_EQ(records[2].header.address, 88u);
  EXPECT_EQ(records[2].Word(0), 4u);
}

TEST_F(Wire, APutBehindAnAtomicIsARecordOfItsOwn) {
  const std::uint64_t value = 1;
  writer_.Put(5, 64, &value, 8);
  writer_.Post(5, 0, AtomicOp::kFetchAdd, 8, 3);
  writer_.Put(5, 72, &value, 8);
  EXPECT_EQ(Read().size(), 3u);
}

TEST_F(Wire, QuestionsAndAnswersComeBack) {
  writer_.Fetch(1, 2, AtomicOp::kCompareSwap, 4, 3, 4, 5);
  writer_.Get(6, 7, 8, 9);
  writer_.Reply(10, 11);
  writer_.ReplyData(12, "data", 4);
  writer_.Refuse(13, Refusal::kDevice);
  const auto records = Read();
  ASSERT_EQ(records.size(), 5u);
  EXPECT_EQ(static_cast<AtomicOp>(records[0].header.op), AtomicOp::kCompareSwap);
  EXPECT_EQ(records[0].header.width, 4);
  EXPECT_EQ(records[0].Word(0), 3u);
  EXPECT_EQ(records[0].Word(1), 4u);
  EXPECT_EQ(records[0].Word(2), 5u);
  EXPECT_EQ(records[0].Word(3), 0u) << "beyond its data";
  EXPECT_EQ(records[1].Word(0), 9u);
  EXPECT_EQ(records[1].Word(1), 8u);
  EXPECT_EQ(records[2].header.key, 10u);
  EXPECT_EQ(records[2].header.address, 11u);
  EXPECT_EQ(std::memcmp(records[3].data, "data", 4), 0);
  EXPECT_EQ(records[4].header.kind, RecordKind::kRefusal);
  EXPECT_EQ(records[4].header.key, 13u);
}

TEST_F(Wire, WordsThatAreToldComeBack) {
  const std::uint64_t words[] = {1, 2, 3};
  writer_.Tell(5, 64, words);
  writer_.Tell(6, 72, std::span(words).last(1));
  const auto records = Read();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].header.kind, RecordKind::kTell);
  EXPECT_EQ(records[0].header.key, 5u);
  EXPECT_EQ(records[0].header.address, 64u);
  EXPECT_EQ(records[0].header.bytes, sizeof words);
  EXPECT_EQ(records[0].Word(2), 3u);
  EXPECT_EQ(records[1].header.bytes, 8u);
  EXPECT_EQ(records[1].Word(0), 3u);
}

TEST_F(Wire, OnlyWholeAlignedWordsAreTold) {
  const auto is_read = [&](std::uint32_t bytes, std::uint64_t address, std::uint8_t padding) {
    const std::uint64_t words[] = {1, 2};
    MessageWriter writer(bytes_);
    writer.Tell(5, address, words);
    RecordHeader header;
    std::memcpy(&header, bytes_ + sizeof(MessageHeader), sizeof header);
    header.bytes = bytes;
    header.padding = padding;
    std::memcpy(bytes_ + sizeof(MessageHeader), &header, sizeof header);
    writer.Finish({});
    return MessageReader({bytes_, writer.used()}).Next().has_value();
  };
  EXPECT_TRUE(is_read(16, 64, 0));
  EXPECT_TRUE(is_read(8, 64, 0));
  EXPECT_FALSE(is_read(0, 64, 0));
  EXPECT_FALSE(is_read(12, 64, 0));
  EXPECT_FALSE(is_read(16, 60, 0));
  EXPECT_FALSE(is_read(8, 64, 4));
}

TEST_F(Wire, TheLargestRecordFitsIntoAnEmptyMessage) {
  const std::vector<std::byte> data(kMaxRecordData, std::byte{7});
  ASSERT_TRUE(writer_.HasRoom(kMaxRecordData));
  writer_.Put(1, 7, data.data(), data.size());
  EXPECT_LE(writer_.used(), kMessageBytes);
  EXPECT_FALSE(writer_.HasRoom(8));
  EXPECT_EQ(Read().at(0).header.bytes, kMaxRecordData);
}

TEST_F(Wire, WhatIsCutOffIsNoMessage) {
  writer_.Post(5, 0, AtomicOp::kFetchAdd, 8, 3);
  const auto whole = Finished();
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_FALSE(MessageReader(whole.first(bytes)).header()) << bytes;
}

TEST_F(Wire, RecordsThatReachBeyondTheMessageAreRefused) {
  for (const std::uint32_t bytes : {9u, 4096u, 0xffffffffu}) {
    MessageWriter writer(bytes_);
    writer.Put(5, 64, "12345678", 8);
    RecordHeader header;
    std::memcpy(&header, bytes_ + sizeof(MessageHeader), sizeof header);
    header.bytes = bytes;
    std::memcpy(bytes_ + sizeof(MessageHeader), &header, sizeof header);
    writer.Finish({});
    MessageReader reader({bytes_, writer.used()});
    EXPECT_FALSE(reader.Next());
    EXPECT_FALSE(reader.ok());
  }
}

TEST(Regions, OnlyWhatIsAllInARegionIsFound) {
  Regions regions;
  std::byte memory[64]{};
  regions.Add(5, 1000, memory, 64);
  {
    const Regions::Use use(regions);
    EXPECT_EQ(use.Find(5, 1000, 64).memory, memory);
    EXPECT_EQ(use.Find(5, 1063, 1).memory, memory + 63);
    EXPECT_EQ(use.Find(5, 1064, 0).memory, memory + 64);
    EXPECT_EQ(use.Find(5, 1000, 65).memory, nullptr);
    EXPECT_EQ(use.Find(5, 1063, 2).memory, nullptr);
    EXPECT_EQ(use.Find(5, 999, 1).memory, nullptr);
    EXPECT_EQ(use.Find(5, 1001, ~std::uint64_t{0}).memory, nullptr);
    EXPECT_EQ(use.Find(6, 1000, 1).memory, nullptr);
  }
  regions.Remove(5);
  EXPECT_EQ(Regions::Use(regions).Find(5, 1000, 1).memory, nullptr);
}

TEST(Regions, AtomicsNeedAWordOfTheirWidth) {
  alignas(8) std::byte memory[16]{};
  EXPECT_TRUE(IsWordAtomic(AtomicOp::kFetch, 8, memory));
  EXPECT_TRUE(IsWordAtomic(AtomicOp::kCompareSwap, 4, memory + 4));
  EXPECT_FALSE(IsWordAtomic(AtomicOp::kFetch, 8, memory + 4));
  EXPECT_FALSE(IsWordAtomic(AtomicOp::kFetch, 4, memory + 2));
  EXPECT_FALSE(IsWordAtomic(AtomicOp::kFetch, 2, memory));
  EXPECT_FALSE(IsWordAtomic(AtomicOp::kFetch, 0, memory));
  EXPECT_FALSE(IsWordAtomic(static_cast<AtomicOp>(8), 8, memory));
}

}  // namespace
}  // namespace mori::shmem::ofi
