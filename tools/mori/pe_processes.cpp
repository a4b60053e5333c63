#include "pe_processes.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
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

/// Null where only the program is at fault.
using FailedStep = const char*;

/// Runs in the child, in the launcher's memory: system calls only. Returns only if it failed.
FailedStep BecomeProgram(const ChildSetup& setup) {
  if (setpgid(0, 0) != 0) return "make a process group";
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // where it is denied, the guard has to do
  if (getppid() != setup.launcher) return "find the launcher";  // it died before the line above
  if (dup2(setup.spec.input_fd, STDIN_FILENO) < 0 ||
      dup2(setup.spec.output_fd, STDOUT_FILENO) < 0 || dup2(setup.spec.error_fd, STDERR_FILENO) < 0)
    return "set the standard streams";
  setrlimit(RLIMIT_NOFILE, &setup.open_files);  // where it is denied, the PE may open more files
  if (!setup.signals.RestoreForChild()) return "restore signals";
  execvpe(setup.spec.arguments[0], setup.spec.arguments, setup.spec.environment);
  return nullptr;
}

void AddNumbers(const std::string& path, std::set<pid_t>* numbers) {
  std::ifstream file(path);
  for (pid_t number = 0; file >> number;) numbers->insert(number);
}

/// Children of this process, ended ones among them. Empty where /proc does not tell.
std::set<pid_t> Children() {
  namespace fs = std::filesystem;
  std::set<pid_t> children;
  std::error_code error;
  bool is_told = false;
  for (const auto& thread : fs::directory_iterator("/proc/self/task", error)) {
    const std::string path = thread.path() / "children";
    is_told = is_told || access(path.c_str(), R_OK) == 0;
    AddNumbers(path, &children);
  }
  if (is_told) return children;
  // A kernel without these lists: every process names its parent.
  for (const auto& process : fs::directory_iterator("/proc", error)) {
    std::ifstream file(process.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    char state = 0;
    pid_t parent = 0;
    if (fields >> state >> parent && parent == getpid())
      children.insert(std::atoi(process.path().filename().c_str()));
  }
  return children;
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
  if (!lost_with.empty()) return 1;
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string PeEnd::Text() const {
  if (!lost_with.empty()) return fmt::format("lost with host {}", lost_with);
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
  strangers_ = Children();
}

StartError PeProcesses::Start(const StartSpec& spec) {
  const ChildSetup setup{spec, signals_, open_files_, getpid()};
  volatile int error = 0;
  volatile FailedStep step = nullptr;
  // The child borrows this process's memory until it runs the program: start-up does not grow with
  // the launcher's memory, and an error comes back in a variable.
  const pid_t process = vfork();  // NOLINT(clang-analyzer-security.insecureAPI.vfork)
  if (process == 0) {
    step = BecomeProgram(setup);
    error = errno;
    _exit(127);
  }
  if (process < 0) return {errno, "make a process", false};
  if (error != 0) {
    waitpid(process, nullptr, 0);
    return step != nullptr ? StartError{error, step, false} : StartError{error, "", true};
  }
  guard_.Watch(pes_.size(), process);
  pes_.push_back({process, true, true});
  return {};
}

void PeProcesses::SignalGroups(int signal) const {
  for (const Pe& pe : pes_) {
    if (pe.group_exists) kill(-pe.process, signal);
  }
  for (const pid_t orphan : orphans_) kill(orphan, signal);
}

void PeProcesses::SignalGroup(std::size_t index, int signal) const {
  if (pes_[index].group_exists) kill(-pes_[index].process, signal);
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
  if (AllEnded() || orphan_signal_ != 0) LookForOrphans();
}

// Whatever ends hands its children to the launcher before the launcher hears of it, so this is
// complete if it is called after each end.
void PeProcesses::LookForOrphans() {
  std::set<pid_t> known = strangers_, groups;
  for (const Pe& pe : pes_) {
    if (pe.running || pe.group_exists) known.insert(pe.process);
    if (pe.group_exists) groups.insert(pe.process);
  }
  std::set<pid_t> found = Children();
  // What stays in the group of a PE gets the group's signals.
  std::erase_if(
      found, [&](pid_t child) { return known.contains(child) || groups.contains(getpgid(child)); });
  for (const pid_t orphan : found) {
    if (orphans_.contains(orphan) || orphan_signal_ == 0) continue;
    kill(orphan, orphan_signal_);
    kill(orphan, SIGCONT);  // a stopped process can act on it
  }
  orphans_ = std::move(found);
}

void PeProcesses::Record(pid_t process, int wait_status) {
  const auto pe = std::find_if(pes_.begin(), pes_.end(), [&](const Pe& known) {
    return known.running && known.process == process;
  });
  if (pe == pes_.end()) return;  // an orphan, or the guard
  pe->running = false;
  ends_.push_back({.pe = static_cast<int>(pe - pes_.begin()), .wait_status = wait_status});
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
  return orphans_.empty() &&
         std::none_of(pes_.begin(), pes_.end(), [](const Pe& pe) { return pe.group_exists; });
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
