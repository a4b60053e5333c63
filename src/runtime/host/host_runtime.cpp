#include "runtime/host/host_runtime.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/element_copy.hpp"
#include "base/machine.hpp"

namespace mori::shmem {
namespace {

class HostMemory final : public DeviceMemory {
 public:
  HostMemory(UniqueFd fd, std::uint64_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}
  std::uint64_t bytes() const override { return bytes_; }
  int fd() const { return fd_.get(); }

  Result<UniqueFd> Export() const override {
    auto copy =
        UniqueFd::KeptFromChildren([this] { return ::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0); });
    if (!copy.valid()) return Status::FromErrno(errno, "duplicate the descriptor of heap memory");
    return copy;
  }

 private:
  UniqueFd fd_;
  std::uint64_t bytes_;
};

class HostRange final : public AddressRange {
 public:
  HostRange(std::byte* base, std::uint64_t bytes) : base_(base), bytes_(bytes) {}
  ~HostRange() override { ::munmap(base_, bytes_); }
  std::byte* base() const override { return base_; }
  std::uint64_t bytes() const override { return bytes_; }

  Status Map(std::uint64_t offset, const DeviceMemory& memory) override {
    if (offset > bytes_ || memory.bytes() > bytes_ - offset) {
      return Error(ErrorCode::kInternal, "{} bytes at offset {} leave a range of {}",
                   memory.bytes(), offset, bytes_);
    }
    const int fd = static_cast<const HostMemory&>(memory).fd();
    const void* mapped = ::mmap(base_ + offset, memory.bytes(), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED, fd, 0);
    if (mapped == MAP_FAILED) {
      return Failed("map", memory.bytes());
    }
    return Status();
  }

  Status Unmap(std::uint64_t offset, std::uint64_t bytes, bool has_views) override {
    if (offset > bytes_ || bytes > bytes_ - offset) {
      return Error(ErrorCode::kInternal, "{} bytes at offset {} leave a range of {}", bytes, offset,
                   bytes_);
    }
    const void* reserved =
        ::mmap(base_ + offset, bytes, has_views ? PROT_READ | PROT_WRITE : PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return reserved == MAP_FAILED ? Failed("unmap", bytes) : Status();
  }

 private:
  static Status Failed(const char* what, std::uint64_t bytes) {
    const int number = errno;
    std::string step = fmt::format("{} {} of heap memory", what, FormatByteSize(bytes));
    if (number == ENOMEM) step += " (vm.max_map_count limits the mappings of a process)";
    return Status::FromErrno(number, step, ErrorCode::kOutOfMemory);
  }

  std::byte* base_;
  std::uint64_t bytes_;
};

}  // namespace

std::string HostRuntime::Describe() const {
  const MemoryLimit memory = FindMemoryLimit();
  return fmt::format("{} CPU{}, {}: {}", ::sysconf(_SC_NPROCESSORS_ONLN),
                     ::sysconf(_SC_NPROCESSORS_ONLN) == 1 ? "" : "s", FormatByteSize(memory.bytes),
                     memory.source);
}

std::uint64_t HostRuntime::GranularityBytes() const {
  return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::uint64_t HostRuntime::MemoryBytes() const {
  std::call_once(looked_, [this] { memory_bytes_ = mori::shmem::MemoryBytes(); });
  return memory_bytes_;
}

std::string HostRuntime::DescribeHeapType(HeapType type) const {
  return type == HeapType::kUncached
             ? "coherent for all CPUs and devices (cached; the host has no other kind)"
             : "cached and coherent";
}

Result<std::unique_ptr<DeviceMemory>> HostRuntime::Allocate(std::uint64_t bytes, HeapType) {
  // Growing a file beyond this limit would be answered by a signal, not by an error.
  rlimit file_size{};
  if (::getrlimit(RLIMIT_FSIZE, &file_size) == 0 && bytes > file_size.rlim_cur) {
    return Error(ErrorCode::kOutOfMemory,
                 "{} of heap memory are over this process's limit of {} for a file (ulimit -f)",
                 FormatByteSize(bytes), FormatByteSize(file_size.rlim_cur));
  }
  auto fd = UniqueFd::KeptFromChildren(
      [] { return ::memfd_create("mori_shmem_heap", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (!fd.valid()) return Status::FromErrno(errno, "create heap memory");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Status::FromErrno(errno, fmt::format("size heap memory to {}", FormatByteSize(bytes)),
                             ErrorCode::kOutOfMemory);
  }
  // A peer that holds the descriptor cannot take the memory away under us.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Status::FromErrno(errno, "seal heap memory");
  }
  return std::unique_ptr<DeviceMemory>(std::make_unique<HostMemory>(std::move(fd), bytes));
}

Result<std::unique_ptr<DeviceMemory>> HostRuntime::Import(UniqueFd descriptor,
                                                          std::uint64_t bytes) {
  struct stat found {};
  if (::fstat(descriptor.get(), &found) != 0)
    return Status::FromErrno(errno, "look at a peer's heap memory");
  // Memory that its sender could shrink would end us by a signal at the next access.
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Error(ErrorCode::kMismatch, "a peer sent a descriptor that is no sealed heap memory");
  }
  if (static_cast<std::uint64_t>(found.st_size) != bytes) {
    return Error(ErrorCode::kMismatch, "a peer sent heap memory of {} bytes where {} were agreed",
                 found.st_size, bytes);
  }
  return std::unique_ptr<DeviceMemory>(std::make_unique<HostMemory>(std::move(descriptor), bytes));
}

Result<std::unique_ptr<AddressRange>> HostRuntime::Reserve(std::uint64_t bytes,
                                                           std::uint64_t alignment) {
  const std::uint64_t padded = bytes + alignment;
  void* raw = padded < bytes ? MAP_FAILED
                             : ::mmap(nullptr, padded, PROT_NONE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    return Status::FromErrno(errno, fmt::format("reserve {} of addresses", FormatByteSize(bytes)),
                             ErrorCode::kOutOfMemory);
  }
  auto* first = static_cast<std::byte*>(raw);
  auto* base =
      first + (alignment - reinterpret_cast<std::uintptr_t>(first) % alignment) % alignment;
  if (base > first) ::munmap(first, static_cast<std::size_t>(base - first));
  if (first + padded > base + bytes)
    ::munmap(base + bytes, static_cast<std::size_t>(first + padded - (base + bytes)));
  return std::unique_ptr<AddressRange>(std::make_unique<HostRange>(base, bytes));
}

Status HostRuntime::Copy(void* to, const void* from, std::uint64_t bytes) const {
  CopyElements(to, from, bytes);
  return Status();
}

}  // namespace mori::shmem
