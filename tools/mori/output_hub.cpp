#include "output_hub.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "base/text.hpp"

namespace mori::launcher {
namespace {

constexpr int kLauncherSource = std::numeric_limits<int>::max();

bool SameFile(int a, int b) {
  struct stat stat_a {};
  struct stat stat_b {};
  return fstat(a, &stat_a) == 0 && fstat(b, &stat_b) == 0 && stat_a.st_dev == stat_b.st_dev &&
         stat_a.st_ino == stat_b.st_ino;
}

bool WantsColor(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && std::getenv("NO_COLOR") == nullptr && term != nullptr &&
         std::string_view(term) != "dumb";
}

std::string Prefix(int pe, bool with_color) {
  constexpr std::array kColors = {36, 32, 33, 35, 34, 31};
  if (!with_color) return fmt::format("[{}] ", pe);
  return fmt::format("\x1b[{}m[{}]\x1b[0m ", kColors[pe % kColors.size()], pe);
}

}  // namespace

OutputHub::OutputHub(int n_pes, bool with_prefix)
    : shared_(SameFile(STDOUT_FILENO, STDERR_FILENO)), out_(STDOUT_FILENO), err_(STDERR_FILENO) {
  const bool has_color[] = {with_prefix && WantsColor(STDOUT_FILENO),
                            with_prefix && WantsColor(ErrorSink().fd())};
  lines_.reserve(2 * static_cast<std::size_t>(n_pes));
  for (int pe = 0; pe < n_pes; ++pe) {
    for (const StreamKind kind : kStreamKinds) {
      OutputSink& sink = kind == StreamKind::kOut ? out_ : ErrorSink();
      const int source = static_cast<int>(lines_.size());
      lines_.emplace_back(
          sink, source,
          with_prefix ? Prefix(pe, has_color[static_cast<std::size_t>(kind)]) : std::string());
    }
  }
}

LineForwarder& OutputHub::LinesOf(int pe, StreamKind kind) {
  return lines_[2 * static_cast<std::size_t>(pe) + static_cast<std::size_t>(kind)];
}

void OutputHub::Feed(int pe, StreamKind kind, std::string_view bytes) {
  LinesOf(pe, kind).Feed(bytes);
}

void OutputHub::Finish(int pe, StreamKind kind) { LinesOf(pe, kind).Finish(); }

void OutputHub::Message(std::string_view text) {
  ErrorSink().Append(kLauncherSource, "mori run: ", shmem::OneLine(text));
  ErrorSink().EndLine(kLauncherSource);
}

void OutputHub::FillPolls(std::span<pollfd> polls) const {
  polls[0] = {out_.empty() ? -1 : out_.fd(), POLLOUT, 0};
  polls[1] = {err_.empty() ? -1 : err_.fd(), POLLOUT, 0};
}

void OutputHub::Flush() {
  out_.Flush();
  err_.Flush();
}

void OutputHub::Abandon() {
  for (OutputSink* sink : {&out_, &err_}) {
    if (!sink->empty()) sink->Discard(ECANCELED);
  }
}

}  // namespace mori::launcher
