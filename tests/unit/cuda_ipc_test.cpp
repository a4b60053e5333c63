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

TEST(CudaIpc, AHandleOfOtherMemoryIsRefused) {
  // Magic, process, number, and a length that is not the expected one.
  std::string record = "moriipc1" + std::string(16 + 8, '\1') + std::string(8, '\0');
  record.resize(104, '\0');
  EXPECT_EQ(ImportOf(FileWith(record)).code(), ErrorCode::kMismatch);
}

TEST(CudaIpc, WhatCannotBeReadIsAnError) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd writer(ends[1]);
  EXPECT_EQ(ImportOf(UniqueFd(ends[0])).code(), ErrorCode::kSystem);
}

}  // namespace
}  // namespace mori::shmem
