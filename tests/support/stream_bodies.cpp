#include "support/stream_bodies.hpp"

#include "support/collective_data.hpp"

namespace mori::shmem::testing {

void StreamPe::Rounds(std::uint64_t count, const std::function<void(std::uint64_t)>& round) {
  constexpr std::uint64_t kAtOnce = 20;
  for (std::uint64_t now = 1; now <= count; ++now) {
    round(now);
    if (now % kAtOnce == 0 || now == count) Sync(stream());
  }
}

// ---- puts and meetings

void CheckPutsAndGets(StreamPe& p, std::size_t most) {
  auto* dest = p.Zeroed<std::uint8_t>(most + 1);
  std::vector<void*> locals = p.LocalsOfEachKind(most);
  locals.push_back(p.Zeroed<std::uint8_t>(most));
  int round = 0;
  for (void* stream : p.Streams()) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, most}) {
      for (void* memory : locals) {
        auto* local = static_cast<std::uint8_t*>(memory);
        const Bytes sent = Sent(p.pe.rank, ++round, bytes);
        p.Write(local, sent);
        p.Write(dest + bytes, Bytes{0xee});
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK_EQ(ShmemPutMemOnStream(dest, local, bytes, Right(p.pe), stream), 0);
        p.Sync(stream);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        Bytes expected = Sent(Left(p.pe), round, bytes);
        expected.push_back(0xee);
        PE_CHECK(p.Read(dest, bytes + 1) == expected);

        p.Write(local, Bytes(bytes, 0xee));
        PE_CHECK_EQ(ShmemGetMemOnStream(local, dest, bytes, Right(p.pe), stream), 0);
        p.Sync(stream);
        PE_CHECK(p.Read(local, bytes) == sent);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
      }
    }
  }
}

void CheckSignalledPuts(StreamPe& p, std::uint64_t words, std::uint64_t rounds) {
  void* stream = p.stream();
  auto* data = p.Zeroed<std::uint64_t>(words);
  auto* source = p.Local<std::uint64_t>(words);
  auto* signal = p.Zeroed<std::uint64_t>(1);
  p.Rounds(rounds, [&](std::uint64_t round) {
    const bool adds = round % 2 == 1;
    p.Fill(source, words, round);
    PE_CHECK_EQ(
        ShmemPutMemSignalOnStream(data, source, words * 8, signal, adds ? 1 : round,
                                  adds ? SignalOp::kAdd : SignalOp::kSet, Right(p.pe), stream),
        0);
    PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(signal, Cmp::kGe, round, stream), 0);
    p.Check(data, words, round);
    PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
  });
}

void CheckPutsToAll(StreamPe& p, std::uint64_t words, std::uint64_t rounds,
                    const std::function<int(std::uint64_t)>& meet) {
  auto* data = p.Zeroed<std::uint64_t>(words * p.n_pes());
  auto* source = p.Local<std::uint64_t>(words);
  p.Rounds(rounds, [&](std::uint64_t round) {
    const std::uint64_t value = round * 1000;
    p.Fill(source, words, value + p.me());
    for (int to = 0; to < p.pe.size; ++to) {
      PE_CHECK_EQ(ShmemPutMemOnStream(data + p.me() * words, source, words * 8, to, p.stream()), 0);
    }
    PE_CHECK_EQ(meet(round), 0);
    for (std::uint64_t from = 0; from < p.n_pes(); ++from)
      p.Check(data + from * words, words, value + from);
    PE_CHECK_EQ(meet(round), 0);
  });
}

// ---- collectives

void CheckByteCollectives(StreamPe& p, std::size_t most) {
  const Pe& pe = p.pe;
  void* stream = p.stream();
  const std::size_t room = most * p.n_pes() + 1;
  auto* source = p.Zeroed<std::uint8_t>(room);
  auto* dest = p.Zeroed<std::uint8_t>(room);
  const auto run = [&](const Bytes& sent, Bytes expected, auto call) {
    p.Write(source, sent);
    p.Write(dest, Bytes(room, 0xee));
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(call(), 0);
    p.Sync(stream);
    p.Write(source, Bytes(sent.size()));  // it may be written to from here on
    expected.resize(room, 0xee);
    PE_CHECK(p.Read(dest, room) == expected);
  };
  int round = 0;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, p.n_pes() - 1, std::size_t{4096}, most}) {
    for (int root = 0; root < pe.size; ++root) {
      ++round;
      run(Sent(pe.rank, round, bytes), Sent(root, round, bytes),
          [&] { return ShmemBroadcastMemOnStream(dest, source, bytes, root, stream); });
    }
    ++round;
    run(Sent(pe.rank, round, bytes), Gathered(pe.size, round, bytes),
        [&] { return ShmemFCollectMemOnStream(dest, source, bytes, stream); });
    run(Sent(pe.rank, round, bytes * p.n_pes()), Exchanged(pe.rank, pe.size, round, bytes),
        [&] { return ShmemAllToAllMemOnStream(dest, source, bytes, stream); });
  }
}

void CheckBroadcastInPlace(StreamPe& p) {
  constexpr std::size_t kBytes = 5000;
  auto* block = p.Zeroed<std::uint8_t>(kBytes);
  p.Write(block, Sent(p.pe.rank, 1, kBytes));
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  PE_CHECK_EQ(ShmemBroadcastMemOnStream(block, block, kBytes, p.pe.size - 1, p.stream()), 0);
  p.Sync(p.stream());
  PE_CHECK(p.Read(block, kBytes) == Sent(p.pe.size - 1, 1, kBytes));
}

namespace {

template <typename T>
int Reduce(T* dest, const T* source, std::size_t count, ReduceOp op, void* stream) {
  switch (op) {
    case ReduceOp::kSum: return ShmemSumReduceOnStream(dest, source, count, stream);
    case ReduceOp::kMin: return ShmemMinReduceOnStream(dest, source, count, stream);
    case ReduceOp::kMax: return ShmemMaxReduceOnStream(dest, source, count, stream);
  }
  return -1;
}

template <typename T>
void CheckReductionsOf(StreamPe& p, const char* type, std::size_t most_bytes) {
  const std::size_t most = most_bytes / sizeof(T);
  T* source = p.Zeroed<T>(most + 1);
  T* dest = p.Zeroed<T>(most + 1);
  unsigned seed = 0;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, p.n_pes() - 1, 4096 / sizeof(T), std::size_t{1000}, most}) {
    for (const auto& [op, name] : kReduceOps) {
      ++seed;
      const T untouched = ElementOf<T>(p.pe.rank, count, seed);
      const auto mine = ElementsOf<T>(p.pe.rank, count + 1, seed);
      auto expected = CombinedElements<T>(op, p.pe.size, count, seed);
      expected.push_back(untouched);
      for (const bool in_place : {false, true}) {
        p.Write(dest, in_place ? mine : std::vector<T>(count + 1, untouched));
        p.Write(source, mine);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK_EQ(Reduce(dest, in_place ? dest : source, count, op, p.stream()), 0);
        p.Sync(p.stream());
        if (!SameBits(p.Read(dest, count + 1), expected)) {
          throw PeFailure(fmt::format("{} of {} {}{} is wrong", name, count, type,
                                      in_place ? " in place" : ""));
        }
        PE_CHECK(SameBits(p.Read(source, count + 1), mine));
      }
    }
  }
  PE_CHECK_EQ(ShmemFree(dest), 0);
  PE_CHECK_EQ(ShmemFree(source), 0);
}

}  // namespace

void CheckReductions(StreamPe& p, std::size_t most_bytes) {
  CheckReductionsOf<std::int32_t>(p, "int32", most_bytes);
  CheckReductionsOf<std::uint32_t>(p, "uint32", most_bytes);
  CheckReductionsOf<std::int64_t>(p, "int64", most_bytes);
  CheckReductionsOf<std::uint64_t>(p, "uint64", most_bytes);
  CheckReductionsOf<float>(p, "float32", most_bytes);
  CheckReductionsOf<double>(p, "float64", most_bytes);
}

void CheckCollectivesInARow(StreamPe& p, std::uint64_t words, std::uint64_t rounds) {
  void* stream = p.stream();
  const std::uint64_t all = words * p.n_pes();
  auto* source = p.Zeroed<std::uint64_t>(all);
  auto* gathered = p.Zeroed<std::uint64_t>(all);
  auto* exchanged = p.Zeroed<std::uint64_t>(all);
  auto* sent = p.Zeroed<std::uint64_t>(words);
  auto* largest = p.Zeroed<std::uint64_t>(words);
  std::uint64_t last = 0;
  const auto fill = [&](std::uint64_t* to, std::uint64_t count) {
    last += 100'000;
    p.Fill(to, count, last + p.me());
    return last;
  };
  p.Rounds(rounds, [&](std::uint64_t round) {
    const bool rewrites = round % 2 == 0;
    const std::uint64_t root = round % p.n_pes();
    const std::uint64_t of_gathered = fill(source, all);
    PE_CHECK_EQ(ShmemFCollectMemOnStream(gathered, source, words * 8, stream), 0);
    const std::uint64_t of_exchanged = rewrites ? fill(source, all) : of_gathered;
    PE_CHECK_EQ(ShmemAllToAllMemOnStream(exchanged, source, words * 8, stream), 0);
    const std::uint64_t of_sent = rewrites ? fill(source, words) : of_gathered;
    PE_CHECK_EQ(ShmemBroadcastMemOnStream(sent, source, words * 8, static_cast<int>(root), stream),
                0);
    const std::uint64_t of_largest = rewrites ? fill(largest, words) : of_gathered;
    PE_CHECK_EQ(ShmemMaxReduceOnStream(largest, rewrites ? largest : source, words, stream), 0);
    for (std::uint64_t from = 0; from < p.n_pes(); ++from) {
      p.Check(gathered + from * words, words, of_gathered + from);
      p.Check(exchanged + from * words, words, of_exchanged + from + p.me() * words);
    }
    p.Check(sent, words, of_sent + root);
    p.Check(largest, words, of_largest + p.n_pes() - 1);
    PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
  });
}

// ---- errors

void ExpectError(int code, ErrorCode expected, const std::string& part) {
  PE_CHECK_EQ(code, static_cast<int>(expected));
  if (std::string(ShmemLastError()).find(part) == std::string::npos)
    throw PeFailure(fmt::format("\"{}\" does not say {}", ShmemLastError(), part));
}
void ExpectInvalid(int code, const std::string& part) {
  ExpectError(code, ErrorCode::kInvalidArgument, part);
}

void CheckWrongCalls(const Pe& pe, std::uint64_t* word, std::uint64_t* local, void* stream) {
  auto* odd = reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::uint8_t*>(word) + 4);
  constexpr std::size_t kTooMuch = std::size_t{1} << 40;
  constexpr auto kSet = SignalOp::kSet;
  constexpr auto kInt32 = ElementType::kInt32;
  constexpr auto kSum = ReduceOp::kSum;
  for (const int no_pe : {-1, pe.size, 1 << 30}) {
    ExpectInvalid(ShmemPutMemOnStream(word, local, 8, no_pe, stream), "out of range");
    ExpectInvalid(ShmemGetMemOnStream(local, word, 8, no_pe, stream), "out of range");
    ExpectInvalid(ShmemPutMemSignalOnStream(word, local, 8, word + 1, 1, kSet, no_pe, stream),
                  "out of range");
    ExpectInvalid(ShmemSignalOpOnStream(word, 1, kSet, no_pe, stream), "out of range");
    ExpectInvalid(ShmemBroadcastMemOnStream(word, word + 1, 8, no_pe, stream), "out of range");
  }
  const auto* const no_address = "no symmetric address";
  ExpectInvalid(ShmemPutMemOnStream(local, word, 8, 0, stream), no_address);
  ExpectInvalid(ShmemGetMemOnStream(word, local, 8, 0, stream), no_address);
  ExpectInvalid(ShmemPutMemSignalOnStream(local, word, 8, word, 1, kSet, 0, stream), no_address);
  ExpectInvalid(ShmemPutMemSignalOnStream(word, local, 8, local, 1, kSet, 0, stream), no_address);
  ExpectInvalid(ShmemSignalOpOnStream(local, 1, kSet, 0, stream), no_address);
  ExpectInvalid(ShmemSignalWaitUntilOnStream(local, Cmp::kEq, 1, stream), no_address);
  ExpectInvalid(ShmemBroadcastMemOnStream(local, word, 8, 0, stream), no_address);
  ExpectInvalid(ShmemFCollectMemOnStream(local, word, 8, stream), no_address);
  ExpectInvalid(ShmemAllToAllMemOnStream(local, word, 8, stream), no_address);
  ExpectInvalid(ShmemReduceOnStream(local, word, 2, kInt32, kSum, stream), no_address);
  ExpectInvalid(ShmemReduceOnStream(word, local, 2, kInt32, kSum, stream), no_address);

  ExpectInvalid(ShmemPutMemOnStream(word, local, kTooMuch, 0, stream), "leave the heap");
  ExpectInvalid(ShmemGetMemOnStream(local, word, kTooMuch, 0, stream), "leave the heap");
  ExpectInvalid(ShmemBroadcastMemOnStream(word, word, kTooMuch, 0, stream), "leave the heap");
  ExpectInvalid(ShmemFCollectMemOnStream(word, word, kTooMuch, stream), "more than the heap");
  ExpectInvalid(ShmemAllToAllMemOnStream(word, word, ~std::size_t{0}, stream),
                "more than the heap");
  ExpectInvalid(ShmemReduceOnStream(word, word, ~std::size_t{0}, kInt32, kSum, stream),
                "more than the heap");

  ExpectInvalid(ShmemSignalOpOnStream(odd, 1, kSet, 0, stream), "not aligned");
  ExpectInvalid(ShmemPutMemSignalOnStream(word, local, 8, odd, 1, kSet, 0, stream), "not aligned");
  ExpectInvalid(ShmemSignalWaitUntilOnStream(odd, Cmp::kEq, 1, stream), "not aligned");
  ExpectInvalid(ShmemReduceOnStream(odd, word, 1, ElementType::kFloat64, kSum, stream),
                "not aligned");

  for (const int unknown : {-1, 6}) {
    ExpectInvalid(ShmemSignalWaitUntilOnStream(word, static_cast<Cmp>(unknown), 1, stream),
                  "comparison");
    ExpectInvalid(
        ShmemReduceOnStream(word, word, 1, static_cast<ElementType>(unknown), kSum, stream),
        "element type");
  }
  for (const int unknown : {-1, 2}) {
    ExpectInvalid(ShmemSignalOpOnStream(word, 1, static_cast<SignalOp>(unknown), 0, stream),
                  "operation");
    ExpectInvalid(ShmemPutMemSignalOnStream(word, local, 8, word, 1, static_cast<SignalOp>(unknown),
                                            0, stream),
                  "operation");
  }
  for (const int unknown : {-1, 3}) {
    ExpectInvalid(
        ShmemReduceOnStream(word, word, 1, kInt32, static_cast<ReduceOp>(unknown), stream),
        "operation");
  }
}

}  // namespace mori::shmem::testing
