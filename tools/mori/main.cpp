// The `mori` command.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "info.hpp"
#include "launcher.hpp"
#include "mori/shmem/shmem_api.hpp"

namespace {

using mori::launcher::RunOptions;

constexpr int kMaxPes = 65536;
constexpr int kUsageError = 2;

constexpr const char* kExamples = R"(Examples:
  mori run -n 4 python3 -u train.py    four PEs, the output of each marked [0] to [3]
  mori run -n 2 -- ./ring_put --once   everything after -- is program and arguments
  mori info                            version, backends, environment variables)";

constexpr const char* kRunNotes =
    R"(Each PE gets MORI_RANK, MORI_WORLD_SIZE, MORI_LOCAL_RANK, MORI_LOCAL_WORLD_SIZE and MORI_UNIQUE_ID;
ShmemInit() in C++ and shmem_init() in Python read them. MORI_SOCKET_IFNAME is lo unless set.
When a PE fails the others are ended: SIGTERM, after the grace period SIGKILL. Ctrl-C, SIGTERM,
SIGHUP and SIGQUIT reach all PEs; a second Ctrl-C kills them. What PEs start ends with them.
Exit status: 0, that of the first PE that failed (128 + signal if killed), 127 or 126 if the
program cannot be run, 128 + signal if a signal ended the run.)";

struct Command {
  RunOptions run;
  double grace_seconds = 5;
  bool no_prefix = false;
  bool environment_only = false;
};

class RunFormatter : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: mori run -n N [options] [--] program [arguments]\n";
  }
};

CLI::App* AddRun(CLI::App& app, Command& command) {
  CLI::App* run = app.add_subcommand("run", "Start a program as N PEs on this machine");
  run->formatter(std::make_shared<RunFormatter>());
  run->add_option("-n", command.run.n_pes, "Number of PEs")
      ->required()
      ->check(CLI::Range(1, kMaxPes))
      ->type_name("N");
  run->add_flag("--no-prefix", command.no_prefix, "Do not mark lines with their PE");
  run->add_flag("--stdin", command.run.with_input,
                "PE 0 reads standard input (without it, no PE does)");
  run->add_option("--grace", command.grace_seconds, "From SIGTERM to SIGKILL [5]")
      ->check(CLI::Range(0.0, 86400.0))
      ->type_name("SECONDS");
  run->footer(kRunNotes);
  return run;
}

CLI::App* AddInfo(CLI::App& app, Command& command) {
  CLI::App* info = app.add_subcommand("info", "Show version, backends and environment variables");
  info->add_flag("--env", command.environment_only, "Only the environment variables");
  return info;
}

bool TakesValue(const CLI::App& app, const std::string& argument) {
  const CLI::Option* option = app.get_option_no_throw(argument);
  return option != nullptr && option->get_items_expected_max() > 0;
}

/// Splits the arguments of `run` into its own and the command, of which not a byte is interpreted.
std::vector<std::string> TakeCommand(const CLI::App& run, std::vector<std::string>& arguments) {
  std::size_t begin = 1;
  while (begin < arguments.size() && arguments[begin].size() > 1 && arguments[begin][0] == '-' &&
         arguments[begin] != "--") {
    begin += TakesValue(run, arguments[begin]) ? 2 : 1;
  }
  begin = std::min(begin, arguments.size());
  std::vector<std::string> command(arguments.begin() + static_cast<std::ptrdiff_t>(begin),
                                   arguments.end());
  arguments.resize(begin);
  if (!command.empty() && command.front() == "--") command.erase(command.begin());
  return command;
}

int UsageError(const std::string& text) {
  fmt::print(stderr, "mori: {}\nTry 'mori --help'.\n", text);
  return kUsageError;
}

int Run(Command& command) {
  if (command.run.command.empty()) {
    return UsageError("run: a program is missing, as in 'mori run -n 2 python3 program.py'");
  }
  command.run.with_prefix = !command.no_prefix;
  command.run.grace = std::chrono::milliseconds(static_cast<long>(command.grace_seconds * 1000));
  return mori::launcher::RunPes(command.run);
}

}  // namespace

int main(int argc, char** argv) {
  Command command;
  CLI::App app("MORI Shmem: symmetric memory for GPUs and CPUs", "mori");
  app.set_version_flag("--version", fmt::format("mori {}", mori::shmem::ShmemVersion()));
  app.footer(kExamples);
  CLI::App* run = AddRun(app, command);
  CLI::App* info = AddInfo(app, command);

  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "run") {
    command.run.command = TakeCommand(*run, arguments);
  }
  try {
    std::reverse(arguments.begin(), arguments.end());  // as the parser wants them
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : UsageError(error.what());
  }
  if (run->parsed()) return Run(command);
  if (info->parsed()) return mori::launcher::PrintInfo(command.environment_only);
  return UsageError("a subcommand is missing: run or info");
}
