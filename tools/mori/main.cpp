// The `mori` command.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/text.hpp"
#include "info.hpp"
#include "launcher.hpp"
#include "mori/shmem/shmem_api.hpp"
#include "output.hpp"

namespace {

using mori::launcher::RunOptions;
using mori::launcher::WriteError;

constexpr int kMaxPes = 65536;
constexpr int kUsageError = 2;

constexpr const char* kExamples = R"(Examples:
  mori run -n 4 python3 -u train.py    four PEs, the output of each marked [0] to [3]
  mori run -n 2 -- ./ring_put --once   everything after -- is program and arguments
  mori info                            version, backends, environment variables)";

constexpr const char* kRunNotes =
    R"(Each PE gets MORI_RANK, MORI_WORLD_SIZE, MORI_LOCAL_RANK, MORI_LOCAL_WORLD_SIZE and MORI_UNIQUE_ID;
ShmemInit() in C++ and shmem_init() in Python read them. MORI_SOCKET_IFNAME is lo unless set.
RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT say the same to programs
of torch; both MASTER variables are kept if they are set.
When a PE fails the others are ended: SIGTERM, after the grace period SIGKILL. Ctrl-C, SIGTERM,
SIGHUP and SIGQUIT reach all PEs; a second Ctrl-C kills them. What PEs start ends with the run in
the same way, also in sessions of its own; where mori run itself is killed by SIGKILL, what stayed in
the process groups of the PEs.
Exit status: 0, that of the first PE that failed (128 + signal if killed), 127 or 126 if the
program cannot be run, 128 + signal if a signal ended the run.)";

struct Command {
  RunOptions run;
  double grace_seconds = 5;
  bool no_prefix = false;
  bool environment_only = false;
};

/// A number of the command line: all of the text, no NaN and no infinity, within limits.
template <typename T>
CLI::Validator NumberIn(T low, T high, const char* kind) {
  return CLI::Validator(
      [=](const std::string& text) {
        T value{};
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        const bool is_number = error == std::errc() && stop == end;
        if (is_number && value >= low && value <= high) return std::string();  // false for NaN
        return fmt::format("{} is no {} from {} to {}", mori::shmem::Quote(text), kind, low, high);
      },
      "");
}

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
      ->check(NumberIn(1, kMaxPes, "whole number"))
      ->type_name("N");
  run->add_flag("--no-prefix", command.no_prefix, "Do not mark lines with their PE");
  run->add_flag("--stdin", command.run.with_input,
                "PE 0 reads standard input (without it, no PE does)");
  run->add_option("--grace", command.grace_seconds, "From SIGTERM to SIGKILL [5]")
      ->check(NumberIn(0.0, 86400.0, "number of seconds"))
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
  WriteError(fmt::format("mori: {}", text));
  WriteError("Try 'mori --help'.");
  return kUsageError;
}

/// Prints help or version, as the parser asks. @return the exit status
int PrintForParser(const CLI::App& app, const CLI::ParseError& request) {
  app.exit(request);
  if (std::cout.flush()) return 0;
  WriteError("mori: cannot write to standard output");
  return 1;
}

/// Habits of other launchers, which the parser would take apart letter by letter.
std::string Misspelling(const std::vector<std::string>& arguments) {
  const auto found = std::find_if(arguments.begin(), arguments.end(), [](const std::string& text) {
    return text == "-np" || text == "--np" || text == "-nproc" || text == "--nproc";
  });
  if (found == arguments.end()) return "";
  return fmt::format("run: {} is no option: the number of PEs is -n, as in 'mori run -n 2'",
                     *found);
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
    if (const std::string text = Misspelling(arguments); !text.empty()) return UsageError(text);
  }
  try {
    std::reverse(arguments.begin(), arguments.end());  // as the parser wants them
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? PrintForParser(app, error) : UsageError(error.what());
  }
  if (run->parsed()) return Run(command);
  if (info->parsed()) return mori::launcher::PrintInfo(command.environment_only);
  return UsageError("a subcommand is missing: run or info");
}
