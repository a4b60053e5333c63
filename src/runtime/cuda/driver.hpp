// The functions of the CUDA driver that this library uses, opened at run time: one build serves
// machines with and without the driver.
//
// Types, values and names are those of the driver API (CUDA Driver API reference, 12 and 13),
// declared here so that nothing of CUDA is needed to build. Functions whose ABI has changed are
// opened by the versioned name that cuda.h gives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.hpp"

namespace mori::shmem::cuda {

using Code = int;    // CUresult
using Device = int;  // CUdevice
using DevicePointer = std::uint64_t;
using MemoryHandle = std::uint64_t;
struct ContextRecord;
using Context = ContextRecord*;
struct ModuleRecord;
using Module = ModuleRecord*;
struct StreamRecord;
using Stream = StreamRecord*;
struct EventRecord;
using Event = EventRecord*;
struct FunctionRecord;
using Function = FunctionRecord*;
struct LibraryRecord;
using Library = LibraryRecord*;

inline constexpr Code kSuccess = 0;
inline constexpr Code kErrorOutOfMemory = 2;
inline constexpr Code kErrorNotFound = 500;
inline constexpr Code kErrorNotReady = 600;
inline constexpr Code kErrorPeerAccessAlreadyEnabled = 704;
inline constexpr Code kErrorCaptureUnsupported = 900;  // and up to 907: something is captured
inline constexpr Code kErrorCapturedEvent = 907;

inline constexpr int kAttributeMultiprocessors = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
inline constexpr int kAttributeVmmSupported =
    102;  // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT…
inline constexpr int kAttributePosixFdSupported = 103;

struct Location {
  int type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
  int id = 0;
};
struct AllocationProperties {
  int type = 1;          // CU_MEM_ALLOCATION_TYPE_PINNED
  int handle_types = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
  Location location;
  void* win32_metadata = nullptr;
  struct {
    unsigned char compression = 0;
    unsigned char gpu_direct_rdma_capable = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};
static_assert(sizeof(AllocationProperties) == 32, "CUmemAllocationProp");
struct IpcHandle {  // CUipcMemHandle
  char reserved[64] = {};
};
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;
struct AccessDescription {
  Location location;
  int flags = 3;  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
};
static_assert(sizeof(AccessDescription) == 12, "CUmemAccessDesc");
inline constexpr int kHandleTypePosixFd = 1;
inline constexpr int kGranularityRecommended = 1;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kCaptureNone = 0;         // CU_STREAM_CAPTURE_STATUS_NONE
inline constexpr int kCaptureModeRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
/// Graphs take launches that start early from CUDA 12.3 on.
inline constexpr int kVersionOfEarlyCapture = 12030;
// CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
inline constexpr int kPeerAttributeNativeAtomics = 3;
inline constexpr int kPointerMemoryType = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
inline constexpr unsigned kMemoryTypeDevice = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;

inline constexpr int kFunctionPtxVersion = 5;  // CU_FUNC_ATTRIBUTE_PTX_VERSION
inline constexpr int kEarlyLaunchPtxVersion = 90;
// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
inline constexpr int kLaunchProgrammaticSerialization = 6;
struct LaunchAttribute {
  int id = 0;
  char padding[4] = {};
  int value[16] = {};
};
static_assert(sizeof(LaunchAttribute) == 72, "CUlaunchAttribute");
struct LaunchConfig {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  Stream stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};
static_assert(sizeof(LaunchConfig) == 56, "CUlaunchConfig");

/// One row for each function: field, name in the driver, arguments.
#define MORI_CUDA_DRIVER_FUNCTIONS(ROW)                                                           \
  ROW(init, "cuInit", (unsigned))                                                                 \
  ROW(driver_version, "cuDriverGetVersion", (int*))                                               \
  ROW(device_count, "cuDeviceGetCount", (int*))                                                   \
  ROW(device_get, "cuDeviceGet", (Device*, int))                                                  \
  ROW(device_name, "cuDeviceGetName", (char*, int, Device))                                       \
  ROW(device_memory, "cuDeviceTotalMem_v2", (std::size_t*, Device))                               \
  ROW(device_attribute, "cuDeviceGetAttribute", (int*, int, Device))                              \
  ROW(device_bus_id, "cuDeviceGetPCIBusId", (char*, int, Device))                                 \
  ROW(device_by_bus_id, "cuDeviceGetByPCIBusId", (Device*, const char*))                          \
  ROW(peer_attribute, "cuDeviceGetP2PAttribute", (int*, int, Device, Device))                     \
  ROW(can_access_peer, "cuDeviceCanAccessPeer", (int*, Device, Device))                           \
  ROW(primary_retain, "cuDevicePrimaryCtxRetain", (Context*, Device))                             \
  ROW(primary_release, "cuDevicePrimaryCtxRelease_v2", (Device))                                  \
  ROW(primary_state, "cuDevicePrimaryCtxGetState", (Device, unsigned*, int*))                     \
  ROW(context_id, "cuCtxGetId", (Context, unsigned long long*))                                   \
  ROW(context_push, "cuCtxPushCurrent_v2", (Context))                                             \
  ROW(context_pop, "cuCtxPopCurrent_v2", (Context*))                                              \
  ROW(context_synchronize, "cuCtxSynchronize", (void))                                            \
  ROW(context_current, "cuCtxGetCurrent", (Context*))                                             \
  ROW(context_device, "cuCtxGetDevice", (Device*))                                                \
  ROW(granularity, "cuMemGetAllocationGranularity",                                               \
      (std::size_t*, const AllocationProperties*, int))                                           \
  ROW(memory_create, "cuMemCreate",                                                               \
      (MemoryHandle*, std::size_t, const AllocationProperties*, unsigned long long))              \
  ROW(memory_release, "cuMemRelease", (MemoryHandle))                                             \
  ROW(memory_export, "cuMemExportToShareableHandle",                                              \
      (void*, MemoryHandle, int, unsigned long long))                                             \
  ROW(memory_import, "cuMemImportFromShareableHandle", (MemoryHandle*, void*, int))               \
  ROW(address_reserve, "cuMemAddressReserve",                                                     \
      (DevicePointer*, std::size_t, std::size_t, DevicePointer, unsigned long long))              \
  ROW(address_free, "cuMemAddressFree", (DevicePointer, std::size_t))                             \
  ROW(map, "cuMemMap",                                                                            \
      (DevicePointer, std::size_t, std::size_t, MemoryHandle, unsigned long long))                \
  ROW(unmap, "cuMemUnmap", (DevicePointer, std::size_t))                                          \
  ROW(set_access, "cuMemSetAccess",                                                               \
      (DevicePointer, std::size_t, const AccessDescription*, std::size_t))                        \
  ROW(memory_allocate, "cuMemAlloc_v2", (DevicePointer*, std::size_t))                            \
  ROW(memory_free, "cuMemFree_v2", (DevicePointer))                                               \
  ROW(ipc_get, "cuIpcGetMemHandle", (IpcHandle*, DevicePointer))                                  \
  ROW(ipc_open, "cuIpcOpenMemHandle_v2", (DevicePointer*, IpcHandle, unsigned))                   \
  ROW(ipc_close, "cuIpcCloseMemHandle", (DevicePointer))                                          \
  ROW(enable_peer_access, "cuCtxEnablePeerAccess", (Context, unsigned))                           \
  ROW(stream_create, "cuStreamCreate", (Stream*, unsigned))                                       \
  ROW(stream_destroy, "cuStreamDestroy_v2", (Stream))                                             \
  ROW(stream_query, "cuStreamQuery", (Stream))                                                    \
  ROW(stream_id, "cuStreamGetId", (Stream, unsigned long long*))                                  \
  ROW(stream_is_capturing, "cuStreamIsCapturing", (Stream, int*))                                 \
  ROW(event_create, "cuEventCreate", (Event*, unsigned))                                          \
  ROW(event_destroy, "cuEventDestroy_v2", (Event))                                                \
  ROW(event_record, "cuEventRecord", (Event, Stream))                                             \
  ROW(event_query, "cuEventQuery", (Event))                                                       \
  ROW(capture_mode, "cuThreadExchangeStreamCaptureMode", (int*))                                  \
  ROW(copy_async, "cuMemcpyAsync", (DevicePointer, DevicePointer, std::size_t, Stream))           \
  ROW(copy_from_device, "cuMemcpyDtoHAsync_v2", (void*, DevicePointer, std::size_t, Stream))      \
  ROW(pointer_attribute, "cuPointerGetAttribute", (void*, int, DevicePointer))                    \
  ROW(host_register, "cuMemHostRegister_v2", (void*, std::size_t, unsigned))                      \
  ROW(host_unregister, "cuMemHostUnregister", (void*))                                            \
  ROW(host_device_pointer, "cuMemHostGetDevicePointer_v2", (DevicePointer*, void*, unsigned))     \
  ROW(module_load, "cuModuleLoadData", (Module*, const void*))                                    \
  ROW(module_unload, "cuModuleUnload", (Module))                                                  \
  ROW(module_function, "cuModuleGetFunction", (Function*, Module, const char*))                   \
  ROW(module_global, "cuModuleGetGlobal_v2", (DevicePointer*, std::size_t*, Module, const char*)) \
  ROW(library_global, "cuLibraryGetGlobal", (DevicePointer*, std::size_t*, Library, const char*)) \
  ROW(launch, "cuLaunchKernel",                                                                   \
      (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,    \
       void**, void**))                                                                           \
  ROW(launch_ex, "cuLaunchKernelEx", (const LaunchConfig*, Function, void**, void**))             \
  ROW(function_attribute, "cuFuncGetAttribute", (int*, int, Function))                            \
  ROW(error_name, "cuGetErrorName", (Code, const char**))                                         \
  ROW(error_text, "cuGetErrorString", (Code, const char**))

/// The same for those that later drivers have alone; null where this one is older.
#define MORI_CUDA_LATER_DRIVER_FUNCTIONS(ROW) \
  ROW(context_record_event, "cuCtxRecordEvent", (Context, Event)) /* CUDA 12.5 */

/// The driver's functions. Thread-safe as the driver is.
struct Driver {
#define MORI_CUDA_DECLARE(field, name, arguments) Code(*field) arguments = nullptr;
  MORI_CUDA_DRIVER_FUNCTIONS(MORI_CUDA_DECLARE)
  MORI_CUDA_LATER_DRIVER_FUNCTIONS(MORI_CUDA_DECLARE)
#undef MORI_CUDA_DECLARE

  /// Success, or an error that says what was tried and what the driver answered. Memory that is not
  /// there is kOutOfMemory, all else kSystem.
  Status Check(Code result, std::string_view what) const;
};

/// Opens and initialises `libcuda.so.1`, once a process. @return kUnsupported without the library,
/// one of its functions, or a device
Result<const Driver*> OpenDriver();

}  // namespace mori::shmem::cuda
