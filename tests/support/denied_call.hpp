// A system call that fails in this process from now on, as under a sandbox's filter.
#pragma once

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace mori::shmem::testing {

/// Makes system call `number` fail with `error`, only where its first argument is `first` if that
/// is given. For good, and for all threads to come: in a process of its own. @return false if the
/// machine does not let processes filter.
inline bool DenyCall(int number, int error, std::optional<std::uint32_t> first = std::nullopt) {
  const auto load = [](std::size_t offset) {
    return sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<std::uint32_t>(offset)};
  };
  const auto unless_equal_skip = [](std::uint32_t value, std::uint8_t count) {
    return sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, count, value};
  };
  const sock_filter any{BPF_JMP | BPF_JA, 0, 0, 0};
  std::array<sock_filter, 6> program{
      load(offsetof(seccomp_data, nr)),
      unless_equal_skip(static_cast<std::uint32_t>(number), 3),
      load(offsetof(seccomp_data, args)),
      first ? unless_equal_skip(*first, 1) : any,
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  sock_fprog filter{program.size(), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace mori::shmem::testing
