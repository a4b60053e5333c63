// What tests of streams of a GPU share: their PEs, and the kernels of tests/gpu/streams.cu.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "gpu/gpu_pe.hpp"
#include "support/stream_bodies.hpp"

namespace mori::shmem::testing {

class CudaStreamPe final : public StreamPe {
 public:
  explicit CudaStreamPe(const Pe& of) : StreamPe(of), gpu(of, "streams"), cuda(gpu.cuda) {}

  std::vector<void*> Streams() const override { return {cuda.stream(), nullptr}; }
  void Sync(void* stream) override { cuda.Sync(stream); }
  std::vector<void*> LocalsOfEachKind(std::size_t bytes) override {
    return {pageable_.emplace_back(bytes).data(), cuda.AllocatePinned<std::uint8_t>(bytes),
            LocalBytes(bytes)};
  }
  void* LocalBytes(std::size_t bytes) override { return cuda.Allocate<std::uint8_t>(bytes); }
  void Copy(void* to, const void* from, std::size_t bytes) override { cuda.Copy(to, from, bytes); }
  void Fill(std::uint64_t* words, std::uint64_t count, std::uint64_t value) override {
    FillOn(stream(), words, count, value);
  }
  void Check(const std::uint64_t* words, std::uint64_t count, std::uint64_t value) override {
    CheckOn(stream(), words, count, value);
  }
  void End() override { gpu.End(); }

  void FillOn(void* stream, std::uint64_t* words, std::uint64_t count, std::uint64_t value) const {
    cuda.LaunchOn(stream, "fill", 4, 256, words, count, value);
  }
  void CheckOn(void* stream, const std::uint64_t* words, std::uint64_t count,
               std::uint64_t value) const {
    cuda.LaunchOn(stream, "check", 4, 256, words, count, value, gpu.errors);
  }
  /// Keeps the stream busy for a while.
  void SpinOn(void* stream) const {
    cuda.LaunchOn(stream, "spin", 1, 1, std::uint64_t{20'000'000});
  }
  /// The word of this PE on every PE, without any order of its own.
  void TellAll(std::uint64_t* words, std::uint64_t value) const {
    cuda.LaunchOn(stream(), "tell_all", 1, 32, words, value);
  }
  void HeardFromAll(const std::uint64_t* words, std::uint64_t value) const {
    cuda.LaunchOn(stream(), "heard_from_all", 1, 32, words, value, gpu.errors);
  }

  GpuPe gpu;
  Cuda& cuda;

 private:
  std::deque<std::vector<std::uint8_t>> pageable_;
};

/// One suite in several files; cuda_streams_test.cpp says over which shapes.
class CudaStreams : public CudaKernelPes {
 protected:
  /// PEs that do not leave by themselves.
  void RunOn(const std::function<void(CudaStreamPe&)>& body) const {
    EXPECT_EQ(Run([&body](const Pe& pe) {
                CudaStreamPe p(pe);
                body(p);
                p.End();
              }),
              "");
  }
};

}  // namespace mori::shmem::testing
