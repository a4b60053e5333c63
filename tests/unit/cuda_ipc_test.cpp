// What another process sends as an IPC handle is looked at before the driver sees it: these need no
// driver.
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "runtime/cuda/cuda_ipc.hpp"

namespace mori::shmem {
namespace {

constexpr std::uint64_t kBytes = 2 << 20;

UniqueFd FileWith(const std::string& text) {
  UniqueFd file(::memfd_create("handle", MFD_CLOEXEC));
  EXPECT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return file;
}

Status ImportOf(UniqueFd file) { return ImportByIpc(nullptr, std::move(file), kBytes).status(); }

TEST(CudaIpc, AFileWithoutAHandleIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("moriipc1"), std::string(104, 'x'), std::string(10'000, '\0')}) {
    const Status refused = ImportOf(FileWith(text));
    EXPECT_EQ(refused.code(), ErrorCode::kMismatch) << text.size();
    EXPECT_EQ(refused.message(), "a peer has sent no IPC handle of 2 MiB");
  }
}

/// As another process would send it: magic, process, number, length and a handle of zeros.
std::string RecordOf(const std::string& magic, std::uint64_t bytes) {
  std::string record = magic + std::string(16 + 8, '\1');
  record.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  record.resize(104, '\0');
  return record;
}

TEST(CudaIpc, AHandleOfOtherMemoryIsRefused) {
  EXPECT_EQ(ImportOf(FileWith(RecordOf("moriipc1", kBytes + 1))).code(), ErrorCode::kMismatch);
}

TEST(CudaIpc, AHandleOfAnotherVersionIsRefused) {
  EXPECT_EQ(ImportOf(FileWith(RecordOf("moriipc2", kBytes))).code(), ErrorCode::kMismatch);
}

TEST(CudaIpc, WhatCannotBeReadIsAnError) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd writer(ends[1]);
  EXPECT_EQ(ImportOf(UniqueFd(ends[0])).code(), ErrorCode::kSystem);
}

}  // namespace
}  // namespace mori::shmem
