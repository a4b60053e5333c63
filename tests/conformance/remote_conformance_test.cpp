// What every remote transport owes, over all implementations.
#include "transport/remote.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "support/device_memory.hpp"
#include "support/memory_network.hpp"
#include "support/remote_pes.hpp"
#include "transport/ofi/ofi_transport.hpp"

namespace mori::shmem {
namespace {

using detail::AtomicOp;
using testing::DeviceMemoryAccess;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::InThreads;
using testing::MakeRemoteNetwork;
using testing::MemoryNetwork;
using ::testing::Not;
using testing::RemoteNetwork;
using testing::RemotePe;
using testing::RemotePes;
using testing::TestLimit;

class OverMemory final : public RemoteNetwork {
 public:
  explicit OverMemory(const MemoryNetwork::Options& options) : network_(options) {}
  std::unique_ptr<RemoteTransport> Join(RemoteParts parts) override {
    return network_.Join(std::move(parts));
  }
  void Lose(int pe) override { network_.Lose(pe, "its connection closed"); }

 private:
  MemoryNetwork network_;
};

MakeRemoteNetwork Memory(bool reorders, bool keeps_fences = true) {
  return [=](int n_pes) -> std::unique_ptr<RemoteNetwork> {
    MemoryNetwork::Options options;
    options.n_pes = n_pes;
    options.reorders = reorders;
    options.keeps_fences = keeps_fences;
    return std::make_unique<OverMemory>(options);
  };
}

/// libfabric over the loopback, where it is: all PEs have endpoints of their own in this process.
class OverOfi final : public RemoteNetwork {
 public:
  explicit OverOfi(bool may_spin, bool is_of_device = false) : may_spin_(may_spin) {
    if (is_of_device) access_.emplace();
  }
  std::unique_ptr<RemoteTransport> Join(RemoteParts parts) override {
    OfiOptions options;
    parts.may_spin = may_spin_;
    options.addresses = {testing::Loopback()};
    auto made = MakeOfiTransport(options, std::move(parts));
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::move(*made) : nullptr;
  }
  void Lose(int) override {}  // its end closes with the transport
  RegionAccess* access() override { return access_ ? &*access_ : nullptr; }

 private:
  bool may_spin_;
  std::optional<DeviceMemoryAccess> access_;
};

MakeRemoteNetwork Ofi(bool may_spin, bool is_of_device = false) {
  return [=](int) -> std::unique_ptr<RemoteNetwork> {
    return std::make_unique<OverOfi>(may_spin, is_of_device);
  };
}
Status HasOfi() {
  OfiOptions options;
  options.addresses = {testing::Loopback()};
  return MakeOfiTransport(options, {}).status();
}

struct Implementation {
  std::string name;
  MakeRemoteNetwork make;
  Status (*is_here)() = nullptr;
};
void PrintTo(const Implementation& implementation, std::ostream* out) {
  *out << implementation.name;
}
const Implementation kImplementations[] = {{"Memory", Memory(false)},
                                           {"ReorderingMemory", Memory(true)},
                                           {"Ofi", Ofi(false), HasOfi},
                                           {"OfiThatSpins", Ofi(true), HasOfi},
                                           {"OfiToADevice", Ofi(false, true), HasOfi}};

#define EXPECT_DONE(expression)                             \
  do {                                                      \
    const Status mori_status = (expression);                \
    EXPECT_TRUE(mori_status.ok()) << mori_status.message(); \
  } while (false)
#define ASSERT_DONE(expression)                             \
  do {                                                      \
    const Status mori_status = (expression);                \
    ASSERT_TRUE(mori_status.ok()) << mori_status.message(); \
  } while (false)

constexpr std::size_t kMiB = std::size_t{1} << 20;
/// Where sizes are told apart by how they travel, and around each such place.
constexpr std::size_t kSizes[] = {
    0,   1,    2,    3,    4,    7,    8,    9,    15,    16,    31,    63,    64,   65,
    255, 1000, 4095, 4096, 4097, 8191, 8192, 8193, 16384, 65535, 65536, 65537, kMiB, 3 * kMiB + 5};
constexpr std::size_t kMisfits[] = {0, 1, 4, 7};
constexpr std::uint8_t kUntouched = 0xee;

std::vector<std::uint8_t> Pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::uint8_t> pattern(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    pattern[i] = static_cast<std::uint8_t>(i * 7 + i / 251 + seed * 31 + 1);
  return pattern;
}

class RemoteSuite : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    if (GetParam().is_here == nullptr) return;
    const Status is_here = GetParam().is_here();
    if (is_here.code() == ErrorCode::kUnsupported) GTEST_SKIP() << is_here.message();
    ASSERT_TRUE(is_here.ok()) << is_here.message();
  }

  RemotePes Make(int n_pes) { return {GetParam().make(n_pes), n_pes}; }
};
INSTANTIATE_TEST_SUITE_P(Remote, RemoteSuite, ::testing::ValuesIn(kImplementations),
                         [](const auto& test) { return test.param.name; });

/// Calls `body(bytes, misfit there, misfit here, round)` for every size, with several alignments.
void ForSizes(const std::function<void(std::size_t, std::size_t, std::size_t, unsigned)>& body) {
  unsigned round = 0;
  for (const std::size_t bytes : kSizes) {
    for (const std::size_t there : kMisfits) {
      for (const std::size_t here : kMisfits) {
        if (bytes >= kMiB && there != here && here != 1) continue;  // takes its time
        body(bytes, there, here, round++);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

/// That `memory` holds `data` behind `before` bytes that nobody touched, and as many behind.
void ExpectAlone(const std::uint8_t* memory, std::size_t before,
                 const std::vector<std::uint8_t>& data) {
  ASSERT_TRUE(std::ranges::equal(data, std::span(memory + before, data.size())))
      << data.size() << " bytes";
  for (std::size_t i = 0; i < 8; ++i) {
    ASSERT_EQ(memory[before - 1 - i], kUntouched) << data.size() << " bytes, " << i << " before";
    ASSERT_EQ(memory[before + data.size() + i], kUntouched)
        << data.size() << " bytes, " << i << " behind";
  }
}

using PutCall = std::function<Status(Channel&, RemotePlace, const void*, std::uint64_t)>;

void CheckPuts(RemotePes& pes, const PutCall& put) {
  RemotePe& there = pes[1];
  ForSizes([&](std::size_t bytes, std::size_t to, std::size_t from, unsigned round) {
    constexpr std::size_t kBefore = 4096;
    std::memset(there.memory(), kUntouched, kBefore + to + bytes + 64);
    const auto data = Pattern(bytes, round);
    std::vector<std::uint8_t> source(bytes + from);
    std::ranges::copy(data, source.data() + from);
    ASSERT_DONE(put(pes[0].channel(), there.place(kBefore + to), source.data() + from, bytes));
    ASSERT_DONE(pes[0].channel().Quiet());
    ExpectAlone(there.memory(), kBefore + to, data);
  });
}

TEST_P(RemoteSuite, PutBringsEverySizeAtEveryAlignment) {
  RemotePes pes = Make(2);
  CheckPuts(pes, [](Channel& channel, RemotePlace to, const void* from, std::uint64_t bytes) {
    return channel.Put(1, to, from, bytes);
  });
}

TEST_P(RemoteSuite, PutNbiBringsEverySizeAtEveryAlignment) {
  RemotePes pes = Make(2);
  CheckPuts(pes, [](Channel& channel, RemotePlace to, const void* from, std::uint64_t bytes) {
    return channel.PutNbi(1, to, from, bytes);
  });
}

TEST_P(RemoteSuite, PutSignalBringsEverySizeAtEveryAlignment) {
  RemotePes pes = Make(2);
  constexpr std::size_t kWord = 2 * RemotePe::kBytes / 4;
  std::uint64_t signals = 0;
  CheckPuts(pes, [&](Channel& channel, RemotePlace to, const void* from, std::uint64_t bytes) {
    ++signals;
    return channel.PutSignal(1, to, from, bytes, pes[1].place(kWord), 1, SignalOp::kAdd);
  });
  EXPECT_EQ(pes[1].word<std::uint64_t>(kWord).load(), signals);
}

using GetCall = std::function<Status(Channel&, void*, RemotePlace, std::uint64_t)>;

void CheckGets(RemotePes& pes, const GetCall& get) {
  RemotePe& there = pes[1];
  ForSizes([&](std::size_t bytes, std::size_t from, std::size_t to, unsigned round) {
    constexpr std::size_t kBefore = 64;
    const auto data = Pattern(bytes, round);
    std::ranges::copy(data, there.memory(from));
    std::vector<std::uint8_t> target(kBefore + to + bytes + 64, kUntouched);
    ASSERT_DONE(get(pes[0].channel(), target.data() + kBefore + to, there.place(from), bytes));
    ExpectAlone(target.data(), kBefore + to, data);
  });
}

TEST_P(RemoteSuite, GetBringsEverySizeAtEveryAlignment) {
  RemotePes pes = Make(2);
  CheckGets(pes, [](Channel& channel, void* to, RemotePlace from, std::uint64_t bytes) {
    return channel.Get(1, to, from, bytes);
  });
}

TEST_P(RemoteSuite, GetNbiBringsItUntilQuiet) {
  RemotePes pes = Make(2);
  CheckGets(pes, [](Channel& channel, void* to, RemotePlace from, std::uint64_t bytes) {
    MORI_RETURN_IF_ERROR(channel.GetNbi(1, to, from, bytes));
    return channel.Quiet(1);
  });
}

TEST_P(RemoteSuite, OwnMemoryIsReachedAsThatOfOthers) {
  RemotePes pes = Make(2);
  const auto data = Pattern(70'000, 1);
  ASSERT_DONE(pes[0].channel().Put(0, pes[0].place(8), data.data(), data.size()));
  ASSERT_DONE(pes[0].channel().Quiet());
  std::vector<std::uint8_t> back(data.size());
  ASSERT_DONE(pes[0].channel().Get(0, back.data(), pes[0].place(8), back.size()));
  EXPECT_EQ(back, data);
  std::uint64_t found = 0;
  pes[0].word<std::uint64_t>(0).store(5);
  ASSERT_DONE(pes[0].channel().Fetch(0, pes[0].place(0), AtomicOp::kFetchAdd, 8, 3, 0, &found));
  EXPECT_EQ(found, 5u);
  EXPECT_EQ(pes[0].word<std::uint64_t>(0).load(), 8u);
}

TEST_P(RemoteSuite, TheLastByteOfMemoryIsReached) {
  RemotePes pes = Make(2);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{8}, std::size_t{5000}, kMiB}) {
    const auto data = Pattern(bytes, 3);
    const std::size_t at = RemotePe::kBytes - bytes;
    ASSERT_DONE(pes[0].channel().Put(1, pes[1].place(at), data.data(), bytes));
    std::vector<std::uint8_t> back(bytes);
    ASSERT_DONE(pes[0].channel().Quiet());
    ASSERT_DONE(pes[0].channel().Get(1, back.data(), pes[1].place(at), bytes));
    EXPECT_EQ(back, data);
  }
}

TEST_P(RemoteSuite, SourceMayChangeOnceAPutHasReturned) {
  RemotePes pes = Make(2);
  constexpr std::size_t kPuts = 4, kWord = RemotePe::kBytes - 8;
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{100}, std::size_t{6000}, kMiB}) {
    std::vector<std::uint8_t> source(bytes);
    for (std::size_t i = 0; i < kPuts; ++i) {
      source = Pattern(bytes, static_cast<unsigned>(i));
      const RemotePlace to = pes[1].place(i * bytes);
      ASSERT_DONE(i % 2 == 0 ? pes[0].channel().Put(1, to, source.data(), bytes)
                             : pes[0].channel().PutSignal(1, to, source.data(), bytes,
                                                          pes[1].place(kWord), i, SignalOp::kSet));
      std::memset(source.data(), 0xff, bytes);
    }
    ASSERT_DONE(pes[0].channel().Quiet());
    for (std::size_t i = 0; i < kPuts; ++i) {
      const auto data = Pattern(bytes, static_cast<unsigned>(i));
      EXPECT_EQ(std::memcmp(pes[1].memory(i * bytes), data.data(), bytes), 0) << bytes << " bytes";
    }
  }
}

TEST_P(RemoteSuite, ManyPutsWithoutAWaitAllArrive) {
  RemotePes pes = Make(3);
  constexpr std::size_t kPuts = 20'000;
  std::vector<std::uint64_t> values(kPuts);
  for (std::size_t i = 0; i < kPuts; ++i) {
    values[i] = i * 3 + 1;
    const int pe = 1 + static_cast<int>(i % 2);
    const auto put = i % 3 == 0 ? &Channel::PutNbi : &Channel::Put;
    ASSERT_DONE((pes[0].channel().*put)(pe, pes[pe].place(i * 8), &values[i], 8));
  }
  ASSERT_DONE(pes[0].channel().Quiet());
  for (std::size_t i = 0; i < kPuts; ++i) {
    ASSERT_EQ(pes[1 + static_cast<int>(i % 2)].word<std::uint64_t>(i * 8).load(), values[i]) << i;
  }
}

TEST_P(RemoteSuite, ManyLargePutsAndGetsAreUnderWayAtOnce) {
  RemotePes pes = Make(2);
  constexpr std::size_t kEach = 256 << 10;
  std::vector<std::vector<std::uint8_t>> sent, got(8, std::vector<std::uint8_t>(kEach));
  for (unsigned i = 0; i < 8; ++i) sent.push_back(Pattern(kEach, i));
  for (std::size_t i = 0; i < 8; ++i)
    ASSERT_DONE(pes[0].channel().PutNbi(1, pes[1].place(i * kEach), sent[i].data(), kEach));
  ASSERT_DONE(pes[0].channel().Quiet(1));
  for (std::size_t i = 0; i < 8; ++i)
    ASSERT_DONE(pes[0].channel().GetNbi(1, got[i].data(), pes[1].place(i * kEach), kEach));
  ASSERT_DONE(pes[0].channel().Quiet());
  EXPECT_EQ(got, sent);
}

TEST_P(RemoteSuite, QuietOfNothingReturns) {
  RemotePes pes = Make(2);
  EXPECT_DONE(pes[0].channel().Quiet());
  EXPECT_DONE(pes[0].channel().Quiet(1));
  EXPECT_DONE(pes[0].channel().Fence());
}

TEST_P(RemoteSuite, WhoSeesTheSignalSeesTheData) {
  RemotePes pes = Make(2);
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{200}, std::size_t{9000}, kMiB}) {
    constexpr std::size_t kWord = RemotePe::kBytes - 8;
    const std::uint64_t rounds = bytes < 9000 ? 300 : 20;
    pes[1].word<std::uint64_t>(kWord).store(0);
    std::atomic<std::uint64_t> checked{0};
    InThreads(2, [&](int side) {
      if (side == 0) {
        for (std::uint64_t round = 1; round <= rounds; ++round) {
          const auto data = Pattern(bytes, static_cast<unsigned>(round));
          const bool is_add = round % 2 == 0;
          ASSERT_DONE(pes[0].channel().PutSignal(1, pes[1].place(0), data.data(), bytes,
                                                 pes[1].place(kWord), is_add ? 1 : round,
                                                 is_add ? SignalOp::kAdd : SignalOp::kSet));
          ASSERT_TRUE(Eventually([&] { return checked.load() == round; }));
        }
        return;
      }
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        const auto word = pes[1].word<std::uint64_t>(kWord);
        ASSERT_TRUE(Eventually([&] { return word.load(std::memory_order_acquire) == round; }));
        const auto data = Pattern(bytes, static_cast<unsigned>(round));
        ASSERT_EQ(std::memcmp(pes[1].memory(), data.data(), bytes), 0)
            << bytes << " bytes, round " << round;
        checked = round;
      }
    });
    ASSERT_DONE(pes[0].channel().Quiet());
  }
}

/// What becomes of `before` by an atomic.
std::uint64_t Expected(AtomicOp op, std::uint64_t before, std::uint64_t value,
                       std::uint64_t expected, int width) {
  const std::uint64_t mask = width == 4 ? 0xffffffff : ~std::uint64_t{0};
  switch (op) {
    case AtomicOp::kFetch: return before;
    case AtomicOp::kSet:
    case AtomicOp::kSwap: return value & mask;
    case AtomicOp::kFetchAdd: return (before + value) & mask;
    case AtomicOp::kFetchAnd: return before & value;
    case AtomicOp::kFetchOr: return (before | value) & mask;
    case AtomicOp::kFetchXor: return (before ^ value) & mask;
    case AtomicOp::kCompareSwap: return (expected & mask) == before ? value & mask : before;
  }
  return 0;
}

constexpr AtomicOp kAllOps[] = {AtomicOp::kFetch,    AtomicOp::kSet,        AtomicOp::kFetchAdd,
                                AtomicOp::kFetchAnd, AtomicOp::kFetchOr,    AtomicOp::kFetchXor,
                                AtomicOp::kSwap,     AtomicOp::kCompareSwap};

class Word {
 public:
  Word(RemotePe& pe, int width) : pe_(pe), width_(width) {}
  RemotePlace place() const { return pe_.place(64); }
  void Set(std::uint64_t value) const {
    std::memset(pe_.memory(), kUntouched, 128);
    if (width_ == 4) {
      pe_.word<std::uint32_t>(64).store(static_cast<std::uint32_t>(value));
    } else {
      pe_.word<std::uint64_t>(64).store(value);
    }
  }
  std::uint64_t Read() const {
    return width_ == 4 ? pe_.word<std::uint32_t>(64).load() : pe_.word<std::uint64_t>(64).load();
  }
  void ExpectNeighboursUntouched() const {
    EXPECT_EQ(*pe_.memory(63), kUntouched);
    EXPECT_EQ(*pe_.memory(64 + static_cast<std::size_t>(width_)), kUntouched);
  }

 private:
  RemotePe& pe_;
  int width_;
};

TEST_P(RemoteSuite, FetchesDoWhatTheirNamesSay) {
  RemotePes pes = Make(2);
  constexpr std::uint64_t kBefore = 0xf0f0'1234'ffff'fff7;
  constexpr std::uint64_t kValue = 0x0ff0'4321'0000'00ff;
  for (const int width : {4, 8}) {
    const Word word(pes[1], width);
    const std::uint64_t before = width == 4 ? kBefore & 0xffffffff : kBefore;
    for (const AtomicOp op : kAllOps) {
      for (const std::uint64_t expected : {kBefore, kBefore + 1}) {
        word.Set(before);
        std::uint64_t found = 0;
        ASSERT_DONE(pes[0].channel().Fetch(1, word.place(), op, width, kValue, expected, &found));
        EXPECT_EQ(found, before) << "operation " << static_cast<int>(op) << ", width " << width;
        EXPECT_EQ(word.Read(), Expected(op, before, kValue, expected, width))
            << "operation " << static_cast<int>(op) << ", width " << width;
        word.ExpectNeighboursUntouched();
      }
    }
  }
}

TEST_P(RemoteSuite, PostsDoWhatTheirNamesSay) {
  RemotePes pes = Make(2);
  constexpr std::uint64_t kBefore = 0xf0f0'1234'ffff'fff7;
  constexpr std::uint64_t kValue = 0x0ff0'4321'0000'00ff;
  for (const int width : {4, 8}) {
    const Word word(pes[1], width);
    const std::uint64_t before = width == 4 ? kBefore & 0xffffffff : kBefore;
    for (const AtomicOp op : kAllOps) {
      if (op == AtomicOp::kFetch || op == AtomicOp::kCompareSwap) continue;
      word.Set(before);
      ASSERT_DONE(pes[0].channel().Post(1, word.place(), op, width, kValue));
      ASSERT_DONE(pes[0].channel().Quiet(1));
      EXPECT_EQ(word.Read(), Expected(op, before, kValue, 0, width))
          << "operation " << static_cast<int>(op) << ", width " << width;
      word.ExpectNeighboursUntouched();
    }
  }
}

template <typename T>
void CheckContention(RemotePes& pes) {
  constexpr int kRounds = 200;
  constexpr int kThreads = 2;
  const auto width = static_cast<int>(sizeof(T));
  const int callers = pes.size() * kThreads;  // PE 0's own network threads, too
  std::mutex mutex;
  std::multiset<std::uint64_t> all;
  InThreads(callers + 1, [&](int thread) {
    if (thread == callers) {  // the owner's CPU
      for (int i = 0; i < kRounds; ++i) pes[0].word<T>(0).fetch_add(1);
      return;
    }
    std::vector<std::uint64_t> found(kRounds);
    Channel& channel = pes[thread / kThreads].channel();
    for (auto& each : found) {
      ASSERT_DONE(channel.Fetch(0, pes[0].place(0), AtomicOp::kFetchAdd, width, 1, 0, &each));
      ASSERT_DONE(channel.Post(0, pes[0].place(8), AtomicOp::kFetchAdd, width, 2));
    }
    ASSERT_DONE(channel.Quiet());
    const std::lock_guard lock(mutex);
    all.insert(found.begin(), found.end());
  });
  EXPECT_EQ(pes[0].word<T>(0).load(), static_cast<T>(kRounds * (callers + 1)));
  EXPECT_EQ(pes[0].word<T>(8).load(), static_cast<T>(2 * kRounds * callers));
  EXPECT_EQ(std::set<std::uint64_t>(all.begin(), all.end()).size(), all.size())
      << "two fetches found one value";
}

TEST_P(RemoteSuite, AtomicsAreExactUnderContention) {
  RemotePes pes = Make(3);
  CheckContention<std::uint64_t>(pes);
}

TEST_P(RemoteSuite, AtomicsOf32BitsAreExactUnderContention) {
  RemotePes pes = Make(3);
  CheckContention<std::uint32_t>(pes);
}

TEST_P(RemoteSuite, ALockOfCompareAndSwapExcludes) {
  RemotePes pes = Make(3);
  constexpr int kRounds = 40;
  InThreads(3, [&](int pe) {
    Channel& channel = pes[pe].channel();
    for (int round = 0; round < kRounds; ++round) {
      std::uint64_t found = 1;
      while (found != 0) {
        ASSERT_DONE(channel.Fetch(0, pes[0].place(0), AtomicOp::kCompareSwap, 8, 1, 0, &found));
      }
      std::uint64_t count = 0;  // read and written without an atomic, under the lock
      ASSERT_DONE(channel.Get(0, &count, pes[0].place(64), 8));
      ++count;
      ASSERT_DONE(channel.Put(0, pes[0].place(64), &count, 8));
      ASSERT_DONE(channel.Quiet(0));
      ASSERT_DONE(channel.Fetch(0, pes[0].place(0), AtomicOp::kSwap, 8, 0, 0, &found));
      ASSERT_EQ(found, 1u);
    }
  });
  EXPECT_EQ(pes[0].word<std::uint64_t>(64).load(), 3u * kRounds);
}

TEST_P(RemoteSuite, NoReaderSeesHalfOfAWord) {
  RemotePes pes = Make(2);
  for (const std::size_t words : {std::size_t{1}, std::size_t{3}, Channel::kWholeBytes / 8}) {
#if defined(__SANITIZE_THREAD__)
    if (words > 1) break;  // it takes the copy of several words for a race
#endif
    const std::vector<std::uint64_t> sources[] = {std::vector<std::uint64_t>(words),
                                                  std::vector<std::uint64_t>(words, ~0ull)};
    std::atomic<bool> is_done{false};
    InThreads(2, [&](int side) {
      if (side == 0) {
        for (int i = 0; i < 1000; ++i) {
          const auto& source = sources[i % 2];
          EXPECT_DONE(pes[0].channel().Put(1, pes[1].place(8), source.data(), words * 8));
          if (i % 50 == 0) EXPECT_DONE(pes[0].channel().Quiet());
        }
        EXPECT_DONE(pes[0].channel().Quiet());
        is_done = true;
        return;
      }
      while (!is_done) {
        for (std::size_t i = 1; i <= words; ++i) {
          const std::uint64_t seen = pes[1].word<std::uint64_t>(i * 8).load();
          ASSERT_TRUE(seen == 0 || seen == ~std::uint64_t{0}) << std::hex << seen;
        }
        std::this_thread::yield();
      }
    });
  }
}

// ---- words for waits

/// Waits for a word as leaders of nodes do. Nothing else wakes it.
std::uint64_t AwaitWord(RemotePe& pe, std::size_t offset, std::uint64_t least) {
  for (;;) {
    const std::uint64_t arrivals = pe.channel().Arrivals();
    const std::uint64_t word = pe.word<std::uint64_t>(offset).load(std::memory_order_acquire);
    if (word >= least) return word;
    pe.channel().AwaitArrival(arrivals, std::chrono::hours(1));
  }
}

TEST_P(RemoteSuite, WhatIsToldWakesWhoWaitsForItsLastWord) {
  RemotePes pes = Make(2);
  constexpr std::size_t kMost = Channel::kMostTold / 8;
  InThreads(2, [&](int pe) {
    for (std::uint64_t round = 1; round <= 300; ++round) {
      const std::size_t words = 1 + round % kMost;
      const std::size_t last = 8 * (kMost - 1), first = 8 * (kMost - words);
      if (round % 2 == static_cast<std::uint64_t>(pe)) {
        const std::vector<std::uint64_t> told(words, round);
        ASSERT_DONE(
            pes[pe].channel().Tell(1 - pe, pes[1 - pe].place(first), told.data(), 8 * words));
      } else {
        ASSERT_EQ(AwaitWord(pes[pe], last, round), round);
        for (std::size_t at = first; at <= last; at += 8)
          ASSERT_EQ(*reinterpret_cast<std::uint64_t*>(pes[pe].memory(at)), round);
      }
    }
  });
}

TEST_P(RemoteSuite, ATellIsOfNoQuiet) {
  RemotePes pes = Make(2);
  const std::uint64_t word = 1;
  // Of memory that is not there: it is lost, and nobody hears of it.
  RemotePlace nowhere = pes[1].place(0);
  nowhere.key += 1;
  ASSERT_DONE(pes[0].channel().Tell(1, nowhere, &word, sizeof word));
  ASSERT_DONE(pes[0].channel().Tell(1, pes[1].place(8), &word, sizeof word));
  ASSERT_EQ(AwaitWord(pes[1], 8, 1), 1u);
  EXPECT_DONE(pes[0].channel().Quiet());
  EXPECT_DONE(pes[0].channel().Quiet(1));
}

TEST_P(RemoteSuite, APeTellsItself) {
  RemotePes pes = Make(1);
  const std::uint64_t words[] = {1, 2};
  ASSERT_DONE(pes[0].channel().Tell(0, pes[0].place(8), words, sizeof words));
  EXPECT_EQ(AwaitWord(pes[0], 16, 2), 2u);
  EXPECT_EQ(pes[0].word<std::uint64_t>(8).load(), 1u);
}

TEST_P(RemoteSuite, AWaitForArrivalsEnds) {
  RemotePes pes = Make(1);
  pes[0].channel().AwaitArrival(pes[0].channel().Arrivals(), std::chrono::milliseconds(1));
  pes[0].channel().AwaitArrival(pes[0].channel().Arrivals() + 1, std::chrono::hours(1));
}

// ---- order

/// Puts to X, a fence, and a put, post or fetch to Y: whether a reader who sees Y sees an older X.
/// @return the rounds in which it did
int Inversions(RemotePes& pes, bool fences) {
  constexpr std::size_t kX = 0, kY = 4096;
  constexpr int kRounds = 300;
  int inverted = 0;
  std::atomic<int> seen{0};
  pes[1].word<std::uint64_t>(kX).store(0);
  pes[1].word<std::uint64_t>(kY).store(0);
  InThreads(2, [&](int side) {
    Channel& channel = pes[0].channel();
    for (int round = 1; round <= kRounds; ++round) {
      const auto value = static_cast<std::uint64_t>(round);
      if (side == 1) {
        const auto y = pes[1].word<std::uint64_t>(kY);
        ASSERT_TRUE(Eventually([&] { return y.load(std::memory_order_acquire) == value; }));
        inverted += pes[1].word<std::uint64_t>(kX).load() != value ? 1 : 0;
        seen = round;
        continue;
      }
      if (round % 2 == 0) {
        EXPECT_DONE(channel.Put(1, pes[1].place(kX), &value, 8));
      } else {
        EXPECT_DONE(channel.Post(1, pes[1].place(kX), AtomicOp::kSet, 8, value));
      }
      if (fences) EXPECT_DONE(channel.Fence());
      std::uint64_t found = 0;
      switch (round % 3) {
        case 0: EXPECT_DONE(channel.Put(1, pes[1].place(kY), &value, 8)); break;
        case 1: EXPECT_DONE(channel.Post(1, pes[1].place(kY), AtomicOp::kSet, 8, value)); break;
        default:
          EXPECT_DONE(channel.Fetch(1, pes[1].place(kY), AtomicOp::kSwap, 8, value, 0, &found));
      }
      ASSERT_TRUE(Eventually([&] { return seen == round; }));
      EXPECT_DONE(channel.Quiet());
    }
  });
  return inverted;
}

TEST_P(RemoteSuite, AFenceKeepsTheOrder) {
  RemotePes pes = Make(2);
  EXPECT_EQ(Inversions(pes, true), 0);
}

TEST_P(RemoteSuite, AFenceKeepsLargePutsBeforeWords) {
  RemotePes pes = Make(2);
  constexpr std::size_t kY = 4 * kMiB;
  std::atomic<std::uint64_t> seen{0};
  InThreads(2, [&](int side) {
    for (std::uint64_t round = 1; round <= 20; ++round) {
      const auto data = Pattern(kMiB, static_cast<unsigned>(round));
      if (side == 0) {
        ASSERT_DONE(pes[0].channel().PutNbi(1, pes[1].place(0), data.data(), data.size()));
        ASSERT_DONE(pes[0].channel().Fence());
        ASSERT_DONE(pes[0].channel().Put(1, pes[1].place(kY), &round, 8));
        ASSERT_TRUE(Eventually([&] { return seen == round; }));
        ASSERT_DONE(pes[0].channel().Quiet());
        continue;
      }
      const auto y = pes[1].word<std::uint64_t>(kY);
      ASSERT_TRUE(Eventually([&] { return y.load(std::memory_order_acquire) == round; }));
      ASSERT_EQ(std::memcmp(pes[1].memory(), data.data(), data.size()), 0) << "round " << round;
      seen = round;
    }
  });
}

TEST(RemoteOrder, TheTestOfOrderNoticesWhereAFenceDoesNothing) {
  RemotePes pes(Memory(true, /*keeps_fences=*/false)(2), 2);
  EXPECT_GT(Inversions(pes, true), 0);
}

TEST(RemoteOrder, TheTestOfOrderNoticesAFenceThatIsMissing) {
  RemotePes pes(Memory(true)(2), 2);
  EXPECT_GT(Inversions(pes, false), 0);
}

// ---- losses

TEST_P(RemoteSuite, ALostPeIsAnErrorAndNoHang) {
  RemotePes pes = Make(3);
  const std::uint64_t value = 7;
  for (const int pe : {1, 2}) ASSERT_DONE(pes[0].channel().Put(pe, pes[pe].place(0), &value, 8));
  ASSERT_DONE(pes[0].channel().Quiet());
  const RemotePlace lost = pes[2].place(0);
  pes.Lose(2);
  Status failed;
  ASSERT_TRUE(Eventually([&] {
    failed = pes[0].channel().Put(2, lost, &value, 8);
    if (failed.ok()) failed = pes[0].channel().Quiet(2);
    return !failed.ok();
  }));
  EXPECT_EQ(failed.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(failed.message(), HasSubstr("PE 2"));
  ASSERT_EQ(pes[0].losses().size(), 1u);
  EXPECT_EQ(pes[0].losses()[0].first, 2);
  EXPECT_FALSE(pes[0].losses()[0].second.empty());

  std::uint64_t found = 0;
  std::vector<std::uint8_t> large(2 * kMiB);
  Channel& channel = pes[0].channel();
  EXPECT_EQ(channel.Get(2, &found, lost, 8).code(), ErrorCode::kPeerLost);
  EXPECT_EQ(channel.Fetch(2, lost, AtomicOp::kFetchAdd, 8, 1, 0, &found).code(),
            ErrorCode::kPeerLost);
  EXPECT_EQ(channel.Put(2, lost, large.data(), large.size()).code(), ErrorCode::kPeerLost);
  EXPECT_EQ(channel.PutSignal(2, lost, &value, 8, lost, 1, SignalOp::kAdd).code(),
            ErrorCode::kPeerLost);
  EXPECT_EQ(channel.Quiet(2).code(), ErrorCode::kPeerLost);
  (void)channel.Quiet();  // may tell of an operation that failed, once
  EXPECT_DONE(channel.Quiet());

  for (int i = 0; i < 100; ++i) EXPECT_DONE(channel.Put(1, pes[1].place(0), &value, 8));
  EXPECT_DONE(channel.Quiet(1));
  EXPECT_DONE(channel.Quiet());
  EXPECT_DONE(channel.Fetch(1, pes[1].place(0), AtomicOp::kFetchAdd, 8, 1, 0, &found));
  EXPECT_EQ(found, 7u);
  EXPECT_EQ(pes[0].losses().size(), 1u) << "a loss is told once";
}

TEST_P(RemoteSuite, ALossWhileOperationsAreUnderWayIsTold) {
  RemotePes pes = Make(3);
  const std::vector<std::uint8_t> data(2 * kMiB, 1);
  const std::uint64_t value = 1;
  ASSERT_DONE(pes[0].channel().Put(2, pes[2].place(0), &value, 8));
  ASSERT_DONE(pes[0].channel().Quiet());
  const RemotePlace there = pes[2].place(0);
  std::atomic<bool> is_over{false};
  InThreads(4, [&](int thread) {
    if (thread == 0) {
      pes.Lose(2);
      return;
    }
    // Each ends with an error, whatever it was doing.
    EXPECT_TRUE(Eventually([&] {
      Status status;
      std::uint64_t found = 0;
      if (thread == 1) status = pes[0].channel().Put(2, there, data.data(), data.size());
      if (thread == 2) status = pes[0].channel().Put(2, there, &value, 8);
      if (thread == 3)
        status = pes[0].channel().Fetch(2, there, AtomicOp::kFetchAdd, 8, 1, 0, &found);
      if (status.ok()) status = pes[0].channel().Quiet(2);
      return status.code() == ErrorCode::kPeerLost;
    }));
    is_over = true;
  });
  EXPECT_TRUE(is_over);
  EXPECT_EQ(pes[0].losses().size(), 1u);
}

/// Each way of asking, by a network that says what was refused.
TEST(RemoteDevice, WhatItsDeviceRefusesIsAnErrorOfWhoAsked) {
  if (HasOfi().code() == ErrorCode::kUnsupported) GTEST_SKIP() << HasOfi().message();
  auto network = std::make_unique<OverOfi>(false, true);
  auto& device = static_cast<DeviceMemoryAccess&>(*network->access());
  RemotePes pes(std::move(network), 2);
  Channel& channel = pes[0].channel();
  const RemotePlace there = pes[1].place(0);
  std::uint64_t value = 7, found = 0;
  ASSERT_DONE(channel.Put(1, there, &value, 8));
  ASSERT_DONE(channel.Quiet());
  EXPECT_EQ(device.calls, 1u);
  device.is_broken = true;
  std::vector<std::uint8_t> large(300'000);
  const auto refused = [](const Status& status) {
    EXPECT_EQ(status.code(), ErrorCode::kSystem);
    EXPECT_THAT(status.message(), HasSubstr("the device of PE 1 did not do what it was asked"));
  };
  EXPECT_DONE(channel.Put(1, there, &value, 8));
  refused(channel.Quiet());
  EXPECT_DONE(channel.Post(1, there, AtomicOp::kFetchAdd, 8, 1));
  refused(channel.Quiet(1));
  EXPECT_DONE(channel.Put(1, there, large.data(), large.size()));
  refused(channel.Quiet());
  refused(channel.Get(1, &found, there, 8));
  refused(channel.Get(1, large.data(), there, large.size()));
  refused(channel.Fetch(1, there, AtomicOp::kFetchAdd, 8, 1, 0, &found));
  device.is_broken = false;
  static_cast<void>(channel.Quiet());
  EXPECT_DONE(channel.Fetch(1, there, AtomicOp::kFetchAdd, 8, 1, 0, &found));
  EXPECT_EQ(found, 7u);
}

// ---- wrong input

TEST_P(RemoteSuite, AddressesOfNothingAreRefused) {
  RemotePes pes = Make(2);
  const Bytes mine = pes[0].transport()->Address();
  EXPECT_LE(mine.size(), 256u);
  const auto connect = [&](const Bytes& other) {
    const Bytes all[] = {mine, other};
    return pes[0].transport()->Connect(all, TestLimit());
  };
  Bytes cut = pes[1].transport()->Address();
  cut.pop_back();
  Bytes longer = pes[1].transport()->Address();
  longer.push_back(0);
  Bytes changed = pes[1].transport()->Address();
  changed[0] ^= 0xff;
  for (const Bytes& wrong : {Bytes{1}, Bytes(256, 0xff), Bytes(100'000, 7), cut, longer, changed}) {
    const Status refused = connect(wrong);
    EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument) << refused.message();
    EXPECT_THAT(refused.message(), HasSubstr("PE 1"));
  }
  const Bytes one[] = {mine};
  EXPECT_EQ(pes[0].transport()->Connect(one, TestLimit()).code(), ErrorCode::kInvalidArgument);
}

TEST_P(RemoteSuite, PesThatAreReachedAnotherWayHaveNoAddress) {
  std::unique_ptr<RemoteNetwork> network = GetParam().make(3);
  RemotePe first(0, 3), last(2, 3);
  first.Join(network.get());
  last.Join(network.get());
  const Bytes for_first[] = {{}, {}, last.transport()->Address()};
  const Bytes for_last[] = {first.transport()->Address(), {}, {}};
  ASSERT_DONE(first.transport()->Connect(for_first, TestLimit()));
  ASSERT_DONE(last.transport()->Connect(for_last, TestLimit()));
  const std::uint64_t value = 9;
  ASSERT_DONE(first.channel().Put(2, last.place(16), &value, 8));
  ASSERT_DONE(first.channel().Quiet());
  EXPECT_EQ(last.word<std::uint64_t>(16).load(), 9u);
}

TEST_P(RemoteSuite, NoMemoryIsNoRegistration) {
  RemotePes pes = Make(2);
  EXPECT_FALSE(pes[0].transport()->Register(nullptr, 4096).ok());
  EXPECT_FALSE(pes[0].transport()->Register(pes[0].memory(), 0).ok());
}

TEST_P(RemoteSuite, SeveralRegistrationsHaveKeysOfTheirOwn) {
  RemotePes pes = Make(2);
  std::vector<std::uint64_t> first(1024), second(1024);
  auto a = pes[1].transport()->Register(first.data(), 8192);
  auto b = pes[1].transport()->Register(second.data(), 8192);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE((*a)->place().key, (*b)->place().key);
  const std::uint64_t values[] = {3, 4};
  ASSERT_DONE(pes[0].channel().Put(1, (*a)->place(), &values[0], 8));
  ASSERT_DONE(pes[0].channel().Put(1, (*b)->place(), &values[1], 8));
  ASSERT_DONE(pes[0].channel().Quiet());
  EXPECT_EQ(first[0], 3u);
  EXPECT_EQ(second[0], 4u);
  a->reset();  // its place may be taken again
  auto c = pes[1].transport()->Register(first.data(), 8192);
  ASSERT_TRUE(c.ok());
  ASSERT_DONE(pes[0].channel().Put(1, (*c)->place(), &values[1], 8));
  ASSERT_DONE(pes[0].channel().Quiet());
  EXPECT_EQ(first[0], 4u);
}

TEST_P(RemoteSuite, ItSaysWhatItIs) {
  RemotePes pes = Make(2);
  EXPECT_FALSE(pes[0].transport()->name().empty());
  EXPECT_THAT(pes[0].transport()->Describe(), Not(HasSubstr("\n")));
  EXPECT_FALSE(pes[0].transport()->Describe().empty());
}

// ---- waits that last, over a network that stands still

class HeldNetwork : public ::testing::Test {
 protected:
  HeldNetwork() : network_(Options()) {
    for (int pe = 0; pe < 2; ++pe) {
      pes_.push_back(std::make_unique<RemotePe>(pe, 2));
      pes_.back()->Join(&joined_);
    }
    network_.Hold();
  }
  ~HeldNetwork() override { network_.Release(); }

  static MemoryNetwork::Options Options() { return {}; }
  class Joined final : public RemoteNetwork {
   public:
    explicit Joined(MemoryNetwork* network) : network_(network) {}
    std::unique_ptr<RemoteTransport> Join(RemoteParts parts) override {
      return network_->Join(std::move(parts));
    }
    void Lose(int pe) override { network_->Lose(pe, "it is gone"); }

   private:
    MemoryNetwork* network_;
  };

  MemoryNetwork network_;
  Joined joined_{&network_};
  std::vector<std::unique_ptr<RemotePe>> pes_;
};

TEST_F(HeldNetwork, AWaitEndsWithWhatItIsTold) {
  std::uint64_t value = 1;
  Channel& channel = pes_[0]->channel();
  ASSERT_DONE(channel.Put(1, pes_[1]->place(0), &value, 8));
  pes_[0]->SetVerdict(Error(ErrorCode::kTimeout, "PE 1 is late"));
  EXPECT_EQ(channel.Quiet().code(), ErrorCode::kTimeout);
  EXPECT_EQ(channel.Get(1, &value, pes_[1]->place(0), 8).code(), ErrorCode::kTimeout);
  EXPECT_EQ(channel.Fetch(1, pes_[1]->place(0), AtomicOp::kFetch, 8, 0, 0, &value).code(),
            ErrorCode::kTimeout);
  EXPECT_GE(pes_[0]->asked, 3);
  pes_[0]->SetVerdict(Status());
  network_.Release();
  EXPECT_DONE(channel.Quiet());
  EXPECT_EQ(pes_[1]->word<std::uint64_t>(0).load(), 1u);
}

TEST_F(HeldNetwork, ALossEndsWaits) {
  std::uint64_t value = 1;
  Channel& channel = pes_[0]->channel();
  ASSERT_DONE(channel.Put(1, pes_[1]->place(0), &value, 8));
  InThreads(2, [&](int thread) {
    if (thread == 0) {
      EXPECT_EQ(channel.Get(1, &value, pes_[1]->place(0), 8).code(), ErrorCode::kPeerLost);
      return;
    }
    EXPECT_TRUE(Eventually([&] { return pes_[0]->asked > 0; }));
    network_.Lose(1, "it is gone");
  });
  EXPECT_EQ(channel.Quiet().code(), ErrorCode::kPeerLost) << "the put has failed";
  EXPECT_DONE(channel.Quiet());
}

TEST_F(HeldNetwork, PostsAreWrittenDown) {
  using Kind = testing::Posted::Kind;
  const std::uint64_t value = 1;
  Channel& channel = pes_[0]->channel();
  ASSERT_DONE(channel.PutNbi(1, pes_[1]->place(16), &value, 8));
  ASSERT_DONE(channel.Fence());
  ASSERT_DONE(channel.Post(1, pes_[1]->place(0), AtomicOp::kFetchOr, 4, 3));
  const auto posts = network_.TakePosts();
  ASSERT_EQ(posts.size(), 3u);
  EXPECT_EQ(posts[0].kind, Kind::kPut);
  EXPECT_EQ(posts[0].to, 1);
  EXPECT_EQ(posts[0].place.address, pes_[1]->place(16).address);
  EXPECT_EQ(posts[1].kind, Kind::kFence);
  EXPECT_EQ(posts[2].kind, Kind::kPost);
  EXPECT_EQ(posts[2].bytes, 4u);
  EXPECT_TRUE(network_.TakePosts().empty());
}

}  // namespace
}  // namespace mori::shmem
