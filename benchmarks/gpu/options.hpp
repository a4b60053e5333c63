// What every program has: options, and an end with a line that says why, whatever fails.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace mori::bench {

/// Ends the process with status 1 and `what` unless `holds`; PE 0 then ends the others.
inline void Require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "BAD %s\n", what.c_str());
  std::fflush(nullptr);
  ::_exit(1);
}

/// For handlers of signals.
inline void WriteError(const char* text) {
  const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(written);
}

/// `handler` is called for `signal_number`; calls of the system go on behind it.
inline void Handle(int signal_number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = handler;
  ::sigaction(signal_number, &action, nullptr);
}

/// Ends this process, and all its threads, after so many seconds.
inline void EndAfter(unsigned limit_s) {
  Handle(SIGALRM, [](int) {
    WriteError("BAD no end in time\n");
    ::_exit(1);
  });
  ::alarm(limit_s);
}

struct Options {
  int pes = 2;
  bool as_threads = false;
  unsigned limit_s = 60;
  std::string json;
  std::string only;  ///< groups of figures, separated by commas; all if empty

  static Options Parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      Require(i + 1 < argc, std::string("--pes N --as processes|threads --json FILE ") +
                                "--only GROUP,GROUP --limit SECONDS");
      const std::string value = argv[i + 1];
      if (name == "--pes") {
        options.pes = std::atoi(value.c_str());
      } else if (name == "--as") {
        Require(value == "processes" || value == "threads", "--as processes|threads");
        options.as_threads = value == "threads";
      } else if (name == "--json") {
        options.json = value;
      } else if (name == "--only") {
        options.only = value;
      } else if (name == "--limit") {
        options.limit_s = static_cast<unsigned>(std::atoi(value.c_str()));
      } else {
        Require(false, "unknown option " + name);
      }
    }
    Require(options.pes >= 2 && options.pes <= 64, "--pes: 2 to 64");
    return options;
  }
  bool Wants(const std::string& group) const {
    return only.empty() || ("," + only + ",").find("," + group + ",") != std::string::npos;
  }
  /// Where a PE's figures go: those of PE `n` above 0 into a file of their own, `json`.`n`.
  std::string JsonOf(int pe) const {
    return pe == 0 || json.empty() ? json : json + "." + std::to_string(pe);
  }
};

}  // namespace mori::bench
