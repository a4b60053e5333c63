// The `mori` command.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "agent.hpp"
#include "base/text.hpp"
#include "host_list.hpp"
#include "info.hpp"
#include "launcher.hpp"
#include "meet.hpp"
#include "mori/shmem/shmem_api.hpp"
#include "output.hpp"

namespace {

using mori::launcher::kMaxPes;
using mori::launcher::RunOptions;
using mori::launcher::WriteError;

constexpr int kUsageError = 2;

constexpr const char* kExamples = R"(Examples:
  mori run -n 4 python3 -u train.py    four PEs, the output of each marked [0] to [3]
  mori run -n 2 -- ./ring_put --once   everything after -- is program and arguments
  mori run --hosts a:2,b:2 ./ring_put  PE 0 and 1 on host a, 2 and 3 on b, by ssh
  mori meet mpirun -x MORI_UNIQUE_ID   another launcher, for ranks on several nodes
  mori info                            version, backends, environment variables)";

constexpr const char* kRunNotes =
    R"(Each PE gets MORI_RANK, MORI_WORLD_SIZE, MORI_LOCAL_RANK, MORI_LOCAL_WORLD_SIZE and MORI_UNIQUE_ID;
ShmemInit() in C++ and shmem_init() in Python read them. MORI_SOCKET_IFNAME is lo unless set.
RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT say the same to programs
of torch; both MASTER variables are kept if they are set.
On several hosts PEs get the working directory, PATH, LD_LIBRARY_PATH, PYTHONPATH, every MORI_ variable
but MORI_NODE_ID, and what -x names; ssh must ask no questions, and MORI Shmem be in the same place.
When a PE fails the others are ended: SIGTERM, after the grace period SIGKILL. Ctrl-C, SIGTERM,
SIGHUP and SIGQUIT reach all PEs; a second Ctrl-C kills them. What PEs start ends with the run in
the same way, also in sessions of its own; where mori run itself is killed by SIGKILL, what stayed in
the process groups of the PEs.
Exit status: 0, that of the first PE that failed (128 + signal if killed), 127 or 126 if the
program cannot be run, 128 + signal if a signal ended the run.)";

constexpr const char* kMeetNotes =
    R"(Ranks of mpirun, srun and others on several nodes find each other by MORI_UNIQUE_ID, which the command
gets, and must hand on: srun does, Open MPI with -x MORI_UNIQUE_ID. The id is served until the command
ends, at the interfaces of MORI_SOCKET_IFNAME, and serves one initialization.)";

struct Command {
  RunOptions run;
  int n_pes = 0;  // 0: as many as the hosts take
  std::string hosts;
  std::string hostfile;
  std::string launch_agent;
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
    return "Usage: mori run -n N [options] [--] program [arguments]\n"
           "       mori run --hosts LIST [options] [--] program [arguments]\n";
  }
};

class MeetFormatter : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: mori meet [--] launcher [arguments]\n";
  }
};

void AddHostOptions(CLI::App& run, Command& command) {
  CLI::Option* hosts =
      run.add_option("--hosts", command.hosts, "Hosts and their numbers of PEs, as in a:2,b:2")
          ->type_name("LIST");
  run.add_option("--hostfile", command.hostfile, "File with a host a line, as in a:2 or a slots=2")
      ->excludes(hosts)
      ->type_name("FILE");
  run.add_option("--launch-agent", command.launch_agent,
                 "Called as CMD HOST COMMAND..., to run the command on the host [ssh]")
      ->type_name("CMD");
  run.add_option("--remote-mori", command.run.remote_mori,
                 "The mori command on the hosts [where it is here]")
      ->type_name("PATH");
  run.add_option("-x", command.run.exports, "A variable of the environment that all PEs get")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("NAME[=VALUE]");
}

CLI::App* AddRun(CLI::App& app, Command& command) {
  CLI::App* run =
      app.add_subcommand("run", "Start a program as N PEs, on this machine or on several");
  run->formatter(std::make_shared<RunFormatter>());
  run->add_option("-n", command.n_pes,
                  "Number of PEs; with hosts: of all their places, the first N")
      ->check(NumberIn(1, kMaxPes, "whole number"))
      ->type_name("N");
  AddHostOptions(*run, command);
  run->add_flag("--no-prefix", command.no_prefix, "Do not mark lines with their PE");
  run->add_flag("--stdin", command.run.with_input,
                "PE 0 reads standard input (without it, no PE does)");
  run->add_option("--grace", command.grace_seconds, "From SIGTERM to SIGKILL [5]")
      ->check(NumberIn(0.0, 86400.0, "number of seconds"))
      ->type_name("SECONDS");
  run->footer(kRunNotes);
  return run;
}

CLI::App* AddMeet(CLI::App& app) {
  CLI::App* meet = app.add_subcommand("meet", "Run another launcher, with a unique id for its job");
  meet->formatter(std::make_shared<MeetFormatter>());
  meet->footer(kMeetNotes);
  return meet;
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

/// Splits the arguments of a subcommand into its own and the command, of which not a byte is
/// interpreted.
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

/// What keeps the hosts that were asked for from being used, as a sentence; empty if nothing.
std::string ChooseHosts(const CLI::App& run, Command& command) {
  const bool has_list = run.count("--hosts") > 0, has_file = run.count("--hostfile") > 0;
  if (!has_list && !has_file) {
    for (const char* name : {"--launch-agent", "--remote-mori"}) {
      if (run.count(name) > 0) return fmt::format("{} is of use with --hosts or --hostfile", name);
    }
    if (command.n_pes == 0) return "-n is required, or --hosts";
    command.run.n_pes = command.n_pes;
    return "";
  }
  auto hosts = has_list ? mori::launcher::ParseHosts(command.hosts)
                        : mori::launcher::ReadHostfile(command.hostfile);
  const std::string source = has_list ? "--hosts" : fmt::format("--hostfile {}", command.hostfile);
  if (hosts.ok() && command.n_pes > 0) hosts = FirstPlaces(*hosts, command.n_pes);
  if (!hosts.ok()) return fmt::format("{}: {}", source, hosts.status().message());
  command.run.hosts = std::move(*hosts);
  command.run.n_pes = CountPes(command.run.hosts);
  return "";
}

/// The words of a command line without quotes.
std::vector<std::string> WordsOf(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

int Run(const CLI::App& run, Command& command) {
  if (command.run.command.empty()) {
    return UsageError("run: a program is missing, as in 'mori run -n 2 python3 program.py'");
  }
  if (const std::string text = ChooseHosts(run, command); !text.empty())
    return UsageError(fmt::format("run: {}", text));
  command.run.launch_agent = WordsOf(command.launch_agent);
  if (run.count("--launch-agent") > 0 && command.run.launch_agent.empty())
    return UsageError("run: --launch-agent names no command");
  for (const std::string& text : command.run.exports) {
    if (text.empty() || text.front() == '=')
      return UsageError(fmt::format("run: -x {} names no variable", mori::shmem::Quote(text)));
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
  const CLI::App* meet = AddMeet(app);
  const CLI::App* info = AddInfo(app, command);
  const CLI::App* agent = app.add_subcommand("agent", "Started by run on each host")->group("");

  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "run") {
    command.run.command = TakeCommand(*run, arguments);
    if (const std::string text = Misspelling(arguments); !text.empty()) return UsageError(text);
  }
  if (!arguments.empty() && arguments[0] == "meet")
    command.run.command = TakeCommand(*meet, arguments);
  try {
    std::reverse(arguments.begin(), arguments.end());  // as the parser wants them
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? PrintForParser(app, error) : UsageError(error.what());
  }
  if (run->parsed()) return Run(*run, command);
  if (meet->parsed() && command.run.command.empty())
    return UsageError("meet: a launcher is missing, as in 'mori meet srun -N 2 ./program'");
  if (meet->parsed()) return mori::launcher::Meet(command.run.command);
  if (agent->parsed()) return mori::launcher::RunAgent();
  if (info->parsed()) return mori::launcher::PrintInfo(command.environment_only);
  return UsageError("a subcommand is missing: run, meet or info");
}
