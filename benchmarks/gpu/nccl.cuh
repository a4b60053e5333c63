// NCCL, as stream_figures.cuh takes a library. Its library is opened at run time, with declarations
// of our own: no header is needed.
#pragma once

#include <dlfcn.h>

#include <string>

#include "pe.cuh"

namespace mori::bench {

struct Nccl {
  static constexpr const char* kName = "nccl";
  static constexpr bool kHasKernels = false;
  /// ncclUniqueId
  struct Token {
    char bytes[128];
  };

  static void SetEnvironment(const char*) {
    // Multicast can put the GPUs of a shared host out of service.
    ::setenv("NCCL_NVLS_ENABLE", "0", 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    ::setenv("NCCL_IB_DISABLE", "1", 0);
    ::setenv("NCCL_DEBUG", "WARN", 0);
  }
  static std::string Version() {
    int version = 0;
    Succeed(Calls().get_version(&version), "version");
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
  }
  static void MakeToken(Token* token) { Succeed(Calls().get_unique_id(token), "unique id"); }
  static void Init(int rank, int size, const Token& token) {
    size_ = size;
    Succeed(Calls().comm_init_rank(&comm_, size, token, rank), "init");
    BENCH_CUDA(cudaMalloc(&word_, sizeof(float)));
    BENCH_CUDA(cudaMemset(word_, 0, sizeof(float)));
    BENCH_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  static void Finalize() { Succeed(Calls().comm_destroy(comm_), "finalize"); }
  static void* Malloc(u64 bytes) {
    void* block = nullptr;
    BENCH_CUDA(cudaMalloc(&block, bytes));
    return block;
  }
  static void Free(void* block) { BENCH_CUDA(cudaFree(block)); }
  /// It has none: a sum of one word.
  static void BarrierOnStream(cudaStream_t stream) { SumReduceOnStream(word_, word_, 1, stream); }
  static void Barrier() {
    BarrierOnStream(stream_);
    BENCH_CUDA(cudaStreamSynchronize(stream_));
  }

  static void BroadcastOnStream(void* dest, const void* source, u64 bytes, cudaStream_t stream) {
    Succeed(Calls().broadcast(source, dest, bytes, kChar, 0, comm_, stream), "broadcast");
  }
  static void FCollectOnStream(void* dest, const void* source, u64 bytes, cudaStream_t stream) {
    Succeed(Calls().all_gather(source, dest, bytes, kChar, comm_, stream), "all-gather");
  }
  static void AllToAllOnStream(void* dest, const void* source, u64 bytes, cudaStream_t stream) {
    Succeed(Calls().group_start(), "group");
    for (int pe = 0; pe < size_; ++pe) {
      const u64 offset = static_cast<u64>(pe) * bytes;
      Succeed(
          Calls().send(static_cast<const char*>(source) + offset, bytes, kChar, pe, comm_, stream),
          "send");
      Succeed(Calls().recv(static_cast<char*>(dest) + offset, bytes, kChar, pe, comm_, stream),
              "receive");
    }
    Succeed(Calls().group_end(), "all-to-all");
  }
  static void SumReduceOnStream(float* dest, const float* source, u64 count, cudaStream_t stream) {
    Succeed(Calls().all_reduce(source, dest, count, kFloat, kSum, comm_, stream), "all-reduce");
  }

 private:
  // nccl.h: ncclChar and ncclFloat of ncclDataType_t, ncclSum of ncclRedOp_t; ncclComm_t is a
  // pointer, and ncclResult_t an int.
  static constexpr int kChar = 0;
  static constexpr int kFloat = 7;
  static constexpr int kSum = 0;
  using Comm = void*;

  struct Functions {
    int (*get_version)(int*);
    const char* (*get_error_string)(int);
    int (*get_unique_id)(Token*);
    int (*comm_init_rank)(Comm*, int size, Token, int rank);
    int (*comm_destroy)(Comm);
    int (*broadcast)(const void*, void*, size_t, int type, int root, Comm, cudaStream_t);
    int (*all_gather)(const void*, void*, size_t, int type, Comm, cudaStream_t);
    int (*all_reduce)(const void*, void*, size_t, int type, int op, Comm, cudaStream_t);
    int (*send)(const void*, size_t, int type, int peer, Comm, cudaStream_t);
    int (*recv)(void*, size_t, int type, int peer, Comm, cudaStream_t);
    int (*group_start)();
    int (*group_end)();
  };
  template <class Function>
  static void Find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(::dlsym(library, name));
    Require(*function != nullptr, std::string("libnccl.so.2 has no ") + name);
  }
  static Functions Load() {
    void* library = ::dlopen("libnccl.so.2", RTLD_NOW);
    Require(library != nullptr, library == nullptr ? ::dlerror() : "");
    Functions functions{};
    Find(library, "ncclGetVersion", &functions.get_version);
    Find(library, "ncclGetErrorString", &functions.get_error_string);
    Find(library, "ncclGetUniqueId", &functions.get_unique_id);
    Find(library, "ncclCommInitRank", &functions.comm_init_rank);
    Find(library, "ncclCommDestroy", &functions.comm_destroy);
    Find(library, "ncclBroadcast", &functions.broadcast);
    Find(library, "ncclAllGather", &functions.all_gather);
    Find(library, "ncclAllReduce", &functions.all_reduce);
    Find(library, "ncclSend", &functions.send);
    Find(library, "ncclRecv", &functions.recv);
    Find(library, "ncclGroupStart", &functions.group_start);
    Find(library, "ncclGroupEnd", &functions.group_end);
    return functions;
  }
  static const Functions& Calls() {
    static const Functions functions = Load();
    return functions;
  }
  static void Succeed(int code, const char* what) {
    if (code != 0)
      Require(false, std::string("nccl: ") + what + ": " + Calls().get_error_string(code));
  }

  // A process has one PE.
  static inline Comm comm_ = nullptr;
  static inline int size_ = 0;
  static inline float* word_ = nullptr;
  static inline cudaStream_t stream_ = nullptr;
};

}  // namespace mori::bench
