// A CUDA driver without a GPU, for tests of what the host does: `libcuda.so.1` of a test program
// that is linked against it. Memory is the host's; what is put on a stream happens at once, but
// counts as done only while the stream is not blocked; kernels do nothing, except the library's for
// an atomic, and those that a test has given bodies. Captures are spoilt by what spoils them for
// the driver, as its documentation says it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mori/shmem/device/context.hpp"

namespace fake_cuda {

/// What it is. Before the first call of the driver.
struct Machine {
  int devices = 1;
  int version = 12080;
  bool can_access_peers = true;
  bool has_native_atomics = true;
  int init_result = 0;  ///< of cuInit
};
Machine& machine();

void* MakeStream();
/// CU_STREAM_PER_THREAD: of each thread another one.
inline void* PerThreadStream() { return reinterpret_cast<void*>(2); }
/// What is put on the stream from now on is not done until it is released.
void Block(void* stream);
void Release(void* stream);
/// A kernel of the program.
void Post(void* stream);

enum class Capture { kGlobal, kThreadLocal, kRelaxed };
void BeginCapture(void* stream, Capture mode);
/// Whether nothing has spoilt it.
bool EndCapture(void* stream);

/// Runs a kernel of that name, if it knows one, in the thread that launches it; `state` is what its
/// module was given.
using Kernels = std::function<void(
    const std::string& name, const mori::shmem::device::DeviceContext& state, void** arguments)>;
/// Before the first launch.
void SetKernels(Kernels kernels);

/// What was copied so far happens before what the calling thread does next: for the thread
/// sanitizer, which does not see how PEs of other processes order the two.
void SeeCopies();

/// Each call of `cuCtxPushCurrent` fails from now on, in a thread without a current context.
void FailPushes(bool fail);
/// Streams, events and kernels answer with this `CUresult` from now on, as after a fault.
void SetFault(int code);
/// Launches so far: "early " for those that may start early, and the kernel's name.
std::vector<std::string> Launches();
/// Looks at streams and events so far that found them not done.
unsigned long long Looks();
/// Events that were made and not destroyed.
unsigned long long Events();
/// The size that a module says its state has; more than the whole of it is of zeros.
void SetStateBytes(void* module, unsigned long long bytes);
/// Memory beyond this, counted where it is mapped, is not there.
void LimitMemory(unsigned long long bytes);
/// Bytes that are mapped now, of all ranges.
unsigned long long MappedBytes();

}  // namespace fake_cuda
