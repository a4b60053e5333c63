#include "pe_processes.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace mori::launcher {
namespace {

struct ChildSetup {
  const StartSpec& spec;
  const SignalSource& signals;
  const rlimit& open_files;
  pid_t launcher;
};

/// Runs in the child, in the launcher's memory: system calls only. Returns only if it failed.
void BecomeProgram(const ChildSetup& setup) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != setup.launcher) return;  // it died before the line above
  dup2(setup.spec.input_fd, STDIN_FILENO);
  dup2(setup.spec.output_fd, STDOUT_FILENO);
  dup2(setup.spec.error_fd, STDERR_FILENO);
  setrlimit(RLIMIT_NOFILE, &setup.open_files);
  setup.signals.RestoreForChild();
  execvpe(setup.spec.arguments[0], setup.spec.arguments, setup.spec.environment);
}

/// "0-2, 5" for {0, 1, 2, 5}; sorted.
std::string Ranges(const std::vector<int>& pes) {
  std::string text;
  for (std::size_t i = 0; i < pes.size(); ++i) {
    const std::size_t begin = i;
    while (i + 1 < pes.size() && pes[i + 1] == pes[i] + 1) ++i;
    if (!text.empty()) text += ", ";
    text += begin == i ? fmt::format("{}", pes[i]) : fmt::format("{}-{}", pes[begin], pes[i]);
  }
  return text;
}

}  // namespace

int PeEnd::ExitStatus() const {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string PeEnd::Text() const {
  if (!WIFSIGNALED(wait_status)) {
    return fmt::format("exited with status {}", WEXITSTATUS(wait_status));
  }
  const std::string_view dump = WCOREDUMP(wait_status) ? " (core dumped)" : "";
  return fmt::format("killed by {}{}", SignalName(WTERMSIG(wait_status)), dump);
}

std::string DescribeEnds(const std::vector<PeEnd>& ends) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const PeEnd& end : ends) {
    const std::string text = end.Text();
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& known) { return known.first == text; });
    if (group == groups.end()) group = groups.insert(groups.end(), {text, {}});
    group->second.push_back(end.pe);
  }
  std::string sentence;
  for (auto& [text, pes] : groups) {
    std::sort(pes.begin(), pes.end());
    sentence += fmt::format("{}PE {} {}", sentence.empty() ? "" : "; ", Ranges(pes), text);
  }
  return sentence;
}

PeProcesses::PeProcesses(const SignalSource& signals, const Guard& guard, const rlimit& open_files)
    : signals_(signals), guard_(guard), open_files_(open_files) {
  // Orphans of PEs become children of the launcher, which so learns of their end.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

StartError PeProcesses::Start(const StartSpec& spec) {
  const ChildSetup setup{spec, signals_, open_files_, getpid()};
  volatile int exec_error = 0;
  // The child borrows this process's memory until it runs the program: start-up does not grow with
  // the launcher's memory, and an error comes back in a variable.
  const pid_t process = vfork();  // NOLINT(clang-analyzer-security.insecureAPI.vfork)
  if (process == 0) {
    BecomeProgram(setup);
    exec_error = errno;
    _exit(127);
  }
  if (process < 0) return {errno, false};
  if (exec_error != 0) {
    waitpid(process, nullptr, 0);
    return {exec_error, true};
  }
  guard_.Watch(pes_.size(), process);
  pes_.push_back({process, true, true});
  return {0, false};
}

void PeProcesses::SignalGroups(int signal) const {
  for (const Pe& pe : pes_) {
    if (pe.group_exists) kill(-pe.process, signal);
  }
}

void PeProcesses::SignalPes(int signal) const {
  for (const Pe& pe : pes_) {
    if (pe.running) kill(pe.process, signal);
  }
}

void PeProcesses::Reap(pid_t first) {
  int wait_status = 0;
  if (first > 0 && waitpid(first, &wait_status, WNOHANG) == first) Record(first, wait_status);
  for (pid_t process; (process = waitpid(-1, &wait_status, WNOHANG)) > 0;) {
    Record(process, wait_status);
  }
  ForgetEmptyGroups();
}

void PeProcesses::Record(pid_t process, int wait_status) {
  const auto pe = std::find_if(pes_.begin(), pes_.end(), [&](const Pe& known) {
    return known.running && known.process == process;
  });
  if (pe == pes_.end()) return;  // an orphan, or the guard
  pe->running = false;
  ends_.push_back({static_cast<int>(pe - pes_.begin()), wait_status});
}

// A group's number is not given to others while it has members, so it is looked at as soon as any
// of its processes may have been the last.
void PeProcesses::ForgetEmptyGroups() {
  for (std::size_t i = 0; i < pes_.size(); ++i) {
    Pe& pe = pes_[i];
    if (pe.running || !pe.group_exists) continue;
    if (kill(-pe.process, 0) == 0 || errno != ESRCH) continue;
    pe.group_exists = false;
    guard_.Forget(i);
  }
}

bool PeProcesses::GroupsGone() const {
  return std::none_of(pes_.begin(), pes_.end(), [](const Pe& pe) { return pe.group_exists; });
}

std::string PeProcesses::DescribeRunning() const {
  std::string text;
  for (std::size_t i = 0; i < pes_.size(); ++i) {
    if (!pes_[i].running) continue;
    text += fmt::format("{}PE {} (process {})", text.empty() ? "" : ", ", i, pes_[i].process);
  }
  return text;
}

}  // namespace mori::launcher
