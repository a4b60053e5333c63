// How long a signal takes from one PE to another: ping-pong by put and wait_until, and by
// put-with-signal, beside the same two cache lines without a library. Half a round trip each.
//
//   mori run -n 2 signal
#include <CLI/CLI.hpp>
#include <cstdint>
#include <vector>

#include "common/pe.hpp"

namespace mori::bench {
namespace {

using namespace mori::shmem;

struct Options {
  int batches = 33;
  long round_trips = 4000;
};

struct Mail {
  explicit Mail(const Pe& pe)
      : me(pe.rank()), other(1 - pe.rank()), word(pe, 1), box(pe, 1), letter(pe, 1) {
    others_word = pe.At(word.data(), other);
  }
  int me;
  int other;
  Symmetric<std::uint64_t> word, box, letter;
  std::uint64_t* others_word = nullptr;  ///< the other PE's copy of `word`
};

void SendAndWaitBare(const Mail& mail, std::uint64_t turn) {
  const auto wait = [&] {
    while (__atomic_load_n(mail.word.data(), __ATOMIC_ACQUIRE) != turn) shmem::detail::CpuRelax();
  };
  if (mail.me != 0) wait();
  __atomic_store_n(mail.others_word, turn, __ATOMIC_RELEASE);
  if (mail.me == 0) wait();
}

void SendAndWaitByPut(const Mail& mail, std::uint64_t turn) {
  if (mail.me != 0) ShmemWaitUntil(mail.word.data(), Cmp::kEq, turn);
  ShmemP(mail.word.data(), turn, mail.other);
  if (mail.me == 0) ShmemWaitUntil(mail.word.data(), Cmp::kEq, turn);
}

void SendAndWaitBySignal(const Mail& mail, std::uint64_t turn) {
  const auto wait = [&] {
    Require(ShmemSignalWaitUntil(mail.word.data(), Cmp::kEq, turn) == 0, "a wait failed");
  };
  if (mail.me != 0) wait();
  ShmemPutMemSignal(mail.box.data(), mail.letter.data(), 8, mail.word.data(), turn, SignalOp::kSet,
                    mail.other);
  if (mail.me == 0) wait();
}

/// Whether what came with the signal is there when the signal is.
void VerifyLetters(const Pe& pe, const Mail& mail) {
  *mail.word.data() = 0;
  pe.Barrier();
  const auto send = [&](std::uint64_t turn) {
    *mail.letter.data() = turn * 3;
    ShmemPutMemSignal(mail.box.data(), mail.letter.data(), 8, mail.word.data(), turn,
                      SignalOp::kSet, mail.other);
  };
  for (std::uint64_t turn = 1; turn <= 1000; ++turn) {
    if (mail.me == 0) send(turn);
    Require(ShmemSignalWaitUntil(mail.word.data(), Cmp::kEq, turn) == 0, "a wait failed");
    Require(*mail.box.data() == turn * 3, "a signal came before its data");
    if (mail.me != 0) send(turn);
  }
  pe.Barrier();
}

using Exchange = void (*)(const Mail&, std::uint64_t);

template <Exchange exchange>
double TimeOneWay(const Pe& pe, const Mail& mail, long round_trips) {
  *mail.word.data() = 0;
  pe.Barrier();
  const double start = NowNs();
  for (long turn = 1; turn <= round_trips; ++turn) {
    exchange(mail, static_cast<std::uint64_t>(turn));
  }
  const double time = (NowNs() - start) / (2.0 * static_cast<double>(round_trips));
  pe.Barrier();
  return time;
}

void Run(const Options& options) {
  const Pe pe;
  Require(pe.size() == 2, "needs 2 PEs");
  const Mail mail(pe);
  VerifyLetters(pe, mail);
  std::vector<double> bare, by_put, by_signal;
  for (int batch = 0; batch < options.batches; ++batch) {
    bare.push_back(TimeOneWay<SendAndWaitBare>(pe, mail, options.round_trips));
    by_put.push_back(TimeOneWay<SendAndWaitByPut>(pe, mail, options.round_trips));
    by_signal.push_back(TimeOneWay<SendAndWaitBySignal>(pe, mail, options.round_trips));
  }
  if (!pe.is_first()) return;
  PrintTimes({"bare_signal", 8}, bare);
  PrintTimes({"wait_until_one_way", 8}, by_put);
  PrintTimes({"put_signal_one_way", 8}, by_signal);
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  CLI::App app("Time of a signal from one PE to another");
  mori::bench::Options options;
  app.add_option("--batches", options.batches, "Batches per figure")->check(CLI::PositiveNumber);
  app.add_option("--round-trips", options.round_trips, "Of a batch")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  mori::bench::Run(options);
}
