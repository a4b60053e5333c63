// Message passing between two threads: data, then a word that says it is there. Built with the
// thread sanitizer, which reports the data as a race unless the word orders it. The argument
// chooses how the word is written.
#include <cstring>
#include <string_view>
#include <thread>

#include "stand_in.hpp"

using namespace mori::shmem;

int main(int, char** argv) {
  const std::string_view how = argv[1];
  auto* data = reinterpret_cast<std::uint64_t*>(heap);
  auto* word = data + 64;
  std::thread writer([&] {
    const std::uint64_t source[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    if (how == "signal-set")
      ShmemPutMemSignal(data, source, sizeof source, word, 1, SignalOp::kSet, 0);
    if (how == "signal-add")
      ShmemPutMemSignal(data, source, sizeof source, word, 1, SignalOp::kAdd, 0);
    if (how == "atomic-set") {
      ShmemPutMem(data, source, sizeof source, 0);
      ShmemAtomicSet(word, std::uint64_t{1}, 0);
    }
    if (how == "atomic-add") {
      ShmemPutMem(data, source, sizeof source, 0);
      ShmemAtomicAdd(word, std::uint64_t{1}, 0);
    }
  });
  ShmemWaitUntil(word, Cmp::kEq, std::uint64_t{1});
  std::uint64_t sum = 0;
  for (int i = 0; i < 8; ++i) sum += data[i];
  writer.join();
  return sum == 36 ? 0 : 2;
}
