#include "transport/ofi/library.hpp"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <cstddef>
#include <cstdlib>

namespace mori::shmem::ofi {
namespace {

constexpr const char* kLibrary = "libfabric.so.1";

/// Signal handlers as they were, put back at the end: a provider's library sets its own when it is
/// loaded.
class KeptSignals {
 public:
  KeptSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i)
      is_known_[i] = ::sigaction(kSignals[i], nullptr, &before_[i]) == 0;
  }
  KeptSignals(const KeptSignals&) = delete;
  ~KeptSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction now {};
      if (!is_known_[i] || ::sigaction(kSignals[i], nullptr, &now) != 0) continue;
      if (now.sa_handler != before_[i].sa_handler) ::sigaction(kSignals[i], &before_[i], nullptr);
    }
  }

 private:
  static constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGINT, SIGTERM, SIGFPE};
  std::array<struct sigaction, kSignals.size()> before_{};
  std::array<bool, kSignals.size()> is_known_{};
};

void PrepareEnvironment() {
  constexpr int kUnlessSet = 0;
  ::setenv("IPATH_NO_BACKTRACE", "1", kUnlessSet);  // no handlers of signals
  // An endpoint takes 8 MiB instead of 70.
  ::setenv("FI_OFI_RXM_MSG_RX_SIZE", "256", kUnlessSet);
  ::setenv("FI_OFI_RXM_BUFFER_SIZE", "4096", kUnlessSet);
  const char* level = ::getenv("FI_LOG_LEVEL");
  if (level != nullptr && *level == '\0') ::unsetenv("FI_LOG_LEVEL");  // it would mean "warn"
}

Result<const Library*> Open() {
  PrepareEnvironment();
  const KeptSignals kept;
  // Never closed: providers have threads and exit handlers of their own.
  void* handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Error(ErrorCode::kUnsupported, "libfabric is not here (package libfabric1): {}",
                 ::dlerror());
  }
  static Library library;
  const char* missing = nullptr;
  const auto find = [&](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(::dlsym(handle, name));
    if (*function == nullptr) missing = name;
  };
  find(&library.get_info, "fi_getinfo");
  find(&library.free_info, "fi_freeinfo");
  find(&library.duplicate_info, "fi_dupinfo");
  find(&library.open_fabric, "fi_fabric");
  find(&library.error_text, "fi_strerror");
  find(&library.version, "fi_version");
  if (missing != nullptr)
    return Error(ErrorCode::kUnsupported, "libfabric is too old: it has no {}", missing);
  return static_cast<const Library*>(&library);
}

}  // namespace

std::string Library::VersionText() const {
  return fmt::format("{}.{}", FI_MAJOR(version()), FI_MINOR(version()));
}

std::string Library::ErrorText(long code) const {
  const int number = static_cast<int>(code < 0 ? -code : code);
  return fmt::format("{} (errno {})", error_text(number), number);
}

Status Library::Check(long result, std::string_view what) const {
  if (result == 0) return Status();
  return Error(ErrorCode::kSystem, "{}: {}", what, ErrorText(result));
}

Result<const Library*> OpenLibrary() {
  static const auto* const opened = new Result<const Library*>(Open());
  return *opened;
}

}  // namespace mori::shmem::ofi
