#include "meet.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#include "base/config.hpp"
#include "base/status.hpp"
#include "base/unique_fd.hpp"
#include "bootstrap/address.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/unique_id.hpp"
#include "local_pes.hpp"
#include "output.hpp"
#include "process_setup.hpp"
#include "running_pes.hpp"

namespace mori::launcher {
namespace {

using shmem::Result;
using shmem::Status;

/// A job may wait in a queue before its first rank comes.
constexpr std::chrono::hours kLifetime{30 * 24};

Result<std::unique_ptr<shmem::RendezvousServer>> Serve() {
  MORI_ASSIGN_OR_RETURN(const shmem::Config config, shmem::Config::FromEnvironment());
  MORI_ASSIGN_OR_RETURN(const auto addresses, shmem::SelectOwnAddresses(config.socket_ifname));
  return shmem::RendezvousServer::Start(addresses, kLifetime);
}

void WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = write(fd, text.data(), text.size());
    if (done < 0 && errno != EINTR) return;
    if (done > 0) text.remove_prefix(static_cast<std::size_t>(done));
  }
}

/// Gives standard streams nothing to read, and nobody who reads.
void LetGoOf(std::initializer_list<int> streams) {
  const shmem::UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : streams) dup2(null.get(), fd);
}

/// The life of the child. It says the id, or after a blank why there is none.
[[noreturn]] void StandBy(const Pipe& pipe, pid_t parent) {
  setpgid(0, 0);  // the terminal's signals are for the command
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, "mori meet");
  LetGoOf({STDIN_FILENO});
  dup2(pipe.write_end.get(), STDOUT_FILENO);
  CloseDescriptorsFrom(STDERR_FILENO + 1);
  const auto server = Serve();
  const std::string said = server.ok() ? shmem::UniqueIdToHex((*server)->id())
                                       : fmt::format(" {}", server.status().message());
  WriteAll(STDOUT_FILENO, said);
  if (!server.ok()) _exit(1);
  LetGoOf({STDOUT_FILENO, STDERR_FILENO});  // whoever reads them waits for the command alone
  // Where the signal of the parent's end is denied.
  while (getppid() == parent) std::this_thread::sleep_for(std::chrono::seconds(1));
  _exit(0);
}

std::string ReadAll(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() == 2 * std::size_t{shmem::UniqueId::kBytes} && text.front() != ' ') return text;
  }
}

int Fail(std::string_view text, int exit_status = kExitError) {
  WriteError(fmt::format("mori meet: {}", text));
  return exit_status;
}

}  // namespace

int Meet(const std::vector<std::string>& command) {
  OpenStandardStreams();
  LeaveSurroundingRun();
  Result<Pipe> pipe = MakePipe();
  if (!pipe.ok()) return Fail(pipe.status().message());
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) StandBy(*pipe, parent);
  if (child < 0)
    return Fail(Status::FromErrno(errno, "cannot start the process that serves the id").message());
  pipe->write_end.Reset();
  const std::string said = ReadAll(pipe->read_end.get());
  if (said.empty() || said.front() == ' ') {
    waitpid(child, nullptr, 0);
    return Fail(said.empty() ? "the process that serves the id has ended" : said.substr(1));
  }
  setenv("MORI_UNIQUE_ID", said.c_str(), 1);
  const StringArray arguments(command);
  execvp(arguments.data()[0], arguments.data());
  const RunFailure failure = CannotRun(command.front(), errno);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return Fail(failure.text, failure.exit_status);
}

}  // namespace mori::launcher
