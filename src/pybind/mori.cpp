// Bindings of the host API: conversion, GIL release, errors to exceptions.
//
// Every call that can block runs without the GIL. Addresses are Python ints.
#include "pybind/mori.hpp"

#include <pybind11/native_enum.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "mori/shmem/shmem.hpp"
#include "pybind/arguments.hpp"

namespace py = pybind11;

namespace mori::shmem {
namespace {

using Raises = py::call_guard<ErrorsAreRaised>;
using ReleaseGil = py::call_guard<ErrorsAreRaised, py::gil_scoped_release>;

/// A word of a device is reached by the device, which may have to end what runs there first. One of
/// the host takes less time than letting go of the lock.
class GilReleaseOnDevice {
 public:
  GilReleaseOnDevice() {
    // Without a PE there is nothing to wait for, and the call itself says so.
    if (ShmemInitialized() && ShmemDevice() >= 0) release_.emplace();
  }

 private:
  std::optional<py::gil_scoped_release> release_;
};
using ReleaseGilOnDevice = py::call_guard<ErrorsAreRaised, GilReleaseOnDevice>;

/// Runs `call` without the GIL.
template <typename Call>
auto Blocking(Call call) {
  const py::gil_scoped_release released;
  return call();
}

void RaiseInPython(const Failure& failure) {
  const py::module_ errors = py::module_::import("mori.shmem.errors");
  const py::object error = errors.attr("failed")(failure.what(), failure.code());
  PyErr_SetObject(errors.attr("ShmemError").ptr(), error.ptr());
}

void RegisterErrors(py::module_& module) {
  py::native_enum<ErrorCode>(module, "ErrorCode", "enum.IntEnum",
                             "Why a call failed. The values are those of the C++ ErrorCode.")
      .value("OK", ErrorCode::kOk)
      .value("NOT_INITIALIZED", ErrorCode::kNotInitialized)
      .value("ALREADY_INITIALIZED", ErrorCode::kAlreadyInitialized)
      .value("INVALID_ARGUMENT", ErrorCode::kInvalidArgument)
      .value("INVALID_CONFIG", ErrorCode::kInvalidConfig)
      .value("OUT_OF_MEMORY", ErrorCode::kOutOfMemory)
      .value("MISMATCH", ErrorCode::kMismatch)
      .value("TIMEOUT", ErrorCode::kTimeout)
      .value("PEER_LOST", ErrorCode::kPeerLost)
      .value("UNSUPPORTED", ErrorCode::kUnsupported)
      .value("SYSTEM", ErrorCode::kSystem)
      .value("INTERNAL", ErrorCode::kInternal)
      .finalize();
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Failure& failure) {
      // A Ctrl-C that came during the call goes before what followed from it, e.g. lost peers.
      if (PyErr_CheckSignals() == 0) RaiseInPython(failure);
    }
  });
}

void RegisterConstants(py::module_& module) {
  module.attr("MORI_SHMEM_INIT_WITH_MPI_COMM") = static_cast<int>(MORI_SHMEM_INIT_WITH_MPI_COMM);
  module.attr("MORI_SHMEM_INIT_WITH_UNIQUEID") = static_cast<int>(MORI_SHMEM_INIT_WITH_UNIQUEID);
  module.attr("MORI_SHMEM_MALLOC_DEFAULT") = static_cast<int>(MORI_SHMEM_MALLOC_DEFAULT);
  module.attr("MORI_SHMEM_MALLOC_FINE_GRAINED") = static_cast<int>(MORI_SHMEM_MALLOC_FINE_GRAINED);
  module.attr("MORI_SHMEM_MALLOC_UNCACHED") = static_cast<int>(MORI_SHMEM_MALLOC_UNCACHED);
  module.attr("UNIQUE_ID_BYTES") = UniqueId::kBytes;
  py::native_enum<Cmp>(module, "Cmp", "enum.IntEnum", "Comparison of a wait or a test.")
      .value("EQ", Cmp::kEq)
      .value("NE", Cmp::kNe)
      .value("GT", Cmp::kGt)
      .value("GE", Cmp::kGe)
      .value("LT", Cmp::kLt)
      .value("LE", Cmp::kLe)
      .finalize();
  py::native_enum<SignalOp>(module, "SignalOp", "enum.IntEnum",
                            "What put-with-signal does to the signal word.")
      .value("SET", SignalOp::kSet)
      .value("ADD", SignalOp::kAdd)
      .finalize();
}

py::bytes GetUniqueId() {
  UniqueId id;
  Check(Blocking([&] { return ShmemGetUniqueId(&id); }));
  return py::bytes(reinterpret_cast<const char*>(id.bytes), UniqueId::kBytes);
}

void InitWithUniqueId(Integer<int, "rank"> rank, Integer<int, "world size"> world_size,
                      const py::object& unique_id) {
  const BufferBytes bytes(unique_id, /*writable=*/false);
  if (bytes.size() != UniqueId::kBytes) {
    throw Failure(ErrorCode::kInvalidArgument, "the unique id has " + std::to_string(bytes.size()) +
                                                   " bytes; shmem_get_unique_id() makes one of " +
                                                   std::to_string(UniqueId::kBytes));
  }
  UniqueId id;
  std::memcpy(id.bytes, bytes.data(), UniqueId::kBytes);
  Check(
      Blocking([&] { return ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, rank, world_size, id); }));
}

void RegisterInit(py::module_& module) {
  module.def("get_unique_id", &GetUniqueId, Raises());
  module.def("init_with_unique_id", &InitWithUniqueId, py::arg("rank"), py::arg("world_size"),
             py::arg("unique_id"), Raises());
  module.def(
      "init", [] { Check(ShmemInit()); }, ReleaseGil());
  module.def(
      "finalize", [] { Check(ShmemFinalize()); }, ReleaseGil());
  module.def("initialized", &ShmemInitialized);
  module.def(
      "module_init",
      [](Integer<std::uintptr_t, "module handle"> handle) {
        Check(ShmemModuleInit(reinterpret_cast<void*>(handle.value)));
      },
      ReleaseGil());
  module.def(
      "library_init",
      [](Integer<std::uintptr_t, "library handle"> handle) {
        Check(ShmemLibraryInit(reinterpret_cast<void*>(handle.value)));
      },
      ReleaseGil());
}

/// A query's answer, which is negative without a PE.
int Answer(int value) {
  if (value < 0) throw Failure(ShmemLastErrorCode());
  return value;
}

/// As `ShmemDevice()`; -1 is the host's, or the error of having no PE.
int Device() {
  const int device = ShmemDevice();
  if (device < 0) Answer(ShmemMyPe());
  return device;
}

void RegisterQueries(py::module_& module) {
  module.def(
      "mype", [] { return Answer(ShmemMyPe()); }, Raises());
  module.def(
      "npes", [] { return Answer(ShmemNPes()); }, Raises());
  module.def("device", &Device, Raises());
  module.def(
      "num_qp_per_pe", [] { return Answer(ShmemNumQpPerPe()); }, Raises());
  module.def("info", &ShmemInfo);
  module.def("version", &ShmemVersion);
  module.def("error_name", &ShmemErrorName, py::arg("code"));
}

std::uintptr_t Allocated(void* ptr) {
  if (ptr == nullptr) throw Failure(ShmemLastErrorCode());
  return reinterpret_cast<std::uintptr_t>(ptr);
}

std::vector<int> LatePes() {
  std::vector<int> pes(static_cast<std::size_t>(Answer(ShmemNPes())));
  const int count = Answer(ShmemLatePes(pes.data(), static_cast<int>(pes.size())));
  pes.resize(static_cast<std::size_t>(count));
  return pes;
}

py::tuple Stats() {
  HeapStats stats;
  Check(ShmemHeapStats(&stats));
  return py::make_tuple(stats.total_bytes, stats.used_bytes, stats.free_bytes,
                        stats.largest_free_bytes, stats.live_blocks);
}

/// The registration calls return a status, also for numbers that are no address or no size.
template <int (*kCall)(void*, std::size_t), Literal kName>
int Registration(const py::object& ptr, const py::object& size) {
  for (const py::handle& argument : {py::handle(ptr), py::handle(size)}) {
    if (PyIndex_Check(argument.ptr()) == 0) throw py::type_error("address and size are ints");
  }
  try {
    const auto address = ptr.cast<Address>();
    const auto bytes = size.cast<Size>();
    return Blocking([&] { return kCall(At<void>(address), bytes); });
  } catch (const Failure& failure) {
    if (!ShmemInitialized()) return kCall(nullptr, 0);  // that is what is wrong first
    return detail::ReportError(failure.code(), (std::string(kName.text) + failure.what()).c_str());
  }
}

void RegisterMemory(py::module_& module) {
  module.def(
      "malloc", [](Size size) { return Allocated(ShmemMalloc(size)); }, py::arg("size"),
      ReleaseGil());
  module.def(
      "malloc_align",
      [](Integer<std::size_t, "alignment"> alignment, Size size) {
        return Allocated(ShmemMallocAlign(alignment, size));
      },
      py::arg("alignment"), py::arg("size"), ReleaseGil());
  module.def(
      "malloc_with_flags",
      [](Size size, Integer<unsigned, "flags"> flags) {
        return Allocated(ShmemExtMallocWithFlags(size, flags));
      },
      py::arg("size"), py::arg("flags"), ReleaseGil());
  module.def(
      "free", [](Address ptr) { Check(ShmemFree(At<void>(ptr))); }, py::arg("ptr"), ReleaseGil());
  module.def("heap_stats", &Stats, Raises());
  module.def("late_pes", &LatePes, Raises());
  module.def("buffer_register", &Registration<&ShmemBufferRegister, "shmem_buffer_register: ">,
             py::arg("ptr"), py::arg("size"));
  module.def("buffer_deregister",
             &Registration<&ShmemBufferDeregister, "shmem_buffer_deregister: ">, py::arg("ptr"),
             py::arg("size"));
}

/// As `ShmemPtrP2p()`; its 0 for a wrong PE number becomes the error that it reported.
std::uint64_t PtrP2p(Address ptr, Integer<int, "my_pe"> my_pe, Integer<int, "dest_pe"> dest_pe) {
  const std::uint64_t remote = ShmemPtrP2p(ptr, my_pe, dest_pe);
  if (remote != 0) return remote;
  const int n_pes = Answer(ShmemNPes());
  const bool in_range = dest_pe >= 0 && dest_pe < n_pes;
  if (!in_range || my_pe != ShmemMyPe()) throw Failure(ShmemLastErrorCode());
  return 0;
}

void PutMem(Address dest, const py::object& source, std::optional<Size> size, Pe pe) {
  const LocalBytes local(source, size, /*writable=*/false);
  Check(Blocking([&] { return ShmemPutMem(At<void>(dest), local.data(), local.size(), pe); }));
}

void GetMem(const py::object& dest, Address source, std::optional<Size> size, Pe pe) {
  const LocalBytes local(dest, size, /*writable=*/true);
  Check(Blocking([&] { return ShmemGetMem(local.data(), At<void>(source), local.size(), pe); }));
}

void PutMemSignal(Address dest, const py::object& source, std::optional<Size> size,
                  Address sig_addr, Integer<std::uint64_t, "signal"> signal, SignalOp op, Pe pe) {
  const LocalBytes local(source, size, /*writable=*/false);
  Check(Blocking([&] {
    return ShmemPutMemSignal(At<void>(dest), local.data(), local.size(),
                             At<std::uint64_t>(sig_addr), signal, op, pe);
  }));
}

void RegisterTransfers(py::module_& module) {
  module.def("ptr_p2p", &PtrP2p, py::arg("ptr"), py::arg("my_pe"), py::arg("dest_pe"), Raises());
  module.def("putmem", &PutMem, py::arg("dest"), py::arg("source"), py::arg("size"), py::arg("pe"),
             Raises());
  module.def("getmem", &GetMem, py::arg("dest"), py::arg("source"), py::arg("size"), py::arg("pe"),
             Raises());
  module.def("putmem_signal", &PutMemSignal, py::arg("dest"), py::arg("source"), py::arg("size"),
             py::arg("sig_addr"), py::arg("signal"), py::arg("op"), py::arg("pe"), Raises());
  module.def(
      "barrier_all", [] { Check(ShmemBarrierAll()); }, ReleaseGil());
  module.def(
      "fence", [] { Check(ShmemFence()); }, Raises());
  module.def(
      "quiet", [] { Check(ShmemQuiet()); }, ReleaseGil());
}

/// The word at `target` on `pe`, as the operations below need it; throws where they would fail.
/// @return the local copy's address.
template <typename T>
T* RequireWord(Address target, int pe, const char* what) {
  T* word = At<T>(target);
  if (detail::FastPeerWord(word, pe) == nullptr)
    Check(detail::CheckWord(word, sizeof(T), pe, what));
  return word;
}

/// A word of this PE.
template <typename T>
const T* RequireOwnWord(Address ivar, const char* what) {
  return RequireWord<T>(ivar, ShmemMyPe(), what);
}

template <typename T>
void DefineFetching(py::module_& word, const char* name, T (*operation)(T*, T, int)) {
  word.def(
      name,
      [name, operation](Address target, Value<T> value, Pe pe) {
        return operation(RequireWord<T>(target, pe, name), value, pe);
      },
      py::arg("target"), py::arg("value"), py::arg("pe"), ReleaseGilOnDevice());
}

template <typename T>
void DefineUpdating(py::module_& word, const char* name, int (*operation)(T*, T, int)) {
  word.def(
      name,
      [operation](Address target, Value<T> value, Pe pe) {
        Check(operation(At<T>(target), value, pe));
      },
      py::arg("target"), py::arg("value"), py::arg("pe"), ReleaseGilOnDevice());
}

template <typename T>
void DefineAtomics(py::module_& word) {
  word.def(
      "fetch",
      [](Address target, Pe pe) {
        return ShmemAtomicFetch<T>(RequireWord<T>(target, pe, "fetch"), pe);
      },
      py::arg("target"), py::arg("pe"), ReleaseGilOnDevice());
  word.def(
      "compare_swap",
      [](Address target, Integer<T, "expected value"> expected, Value<T> value, Pe pe) {
        return ShmemAtomicCompareSwap<T>(RequireWord<T>(target, pe, "compare_swap"), expected,
                                         value, pe);
      },
      py::arg("target"), py::arg("expected"), py::arg("value"), py::arg("pe"),
      ReleaseGilOnDevice());
  word.def(
      "inc", [](Address target, Pe pe) { Check(ShmemAtomicInc<T>(At<T>(target), pe)); },
      py::arg("target"), py::arg("pe"), ReleaseGilOnDevice());
  word.def(
      "fetch_inc",
      [](Address target, Pe pe) {
        return ShmemAtomicFetchInc<T>(RequireWord<T>(target, pe, "fetch_inc"), pe);
      },
      py::arg("target"), py::arg("pe"), ReleaseGilOnDevice());
  DefineFetching<T>(word, "swap", &ShmemAtomicSwap<T>);
  DefineFetching<T>(word, "fetch_add", &ShmemAtomicFetchAdd<T>);
  DefineFetching<T>(word, "fetch_and", &ShmemAtomicFetchAnd<T>);
  DefineFetching<T>(word, "fetch_or", &ShmemAtomicFetchOr<T>);
  DefineFetching<T>(word, "fetch_xor", &ShmemAtomicFetchXor<T>);
  DefineUpdating<T>(word, "set", &ShmemAtomicSet<T>);
  DefineUpdating<T>(word, "add", &ShmemAtomicAdd<T>);
  DefineUpdating<T>(word, "and_", &ShmemAtomicAnd<T>);
  DefineUpdating<T>(word, "or_", &ShmemAtomicOr<T>);
  DefineUpdating<T>(word, "xor", &ShmemAtomicXor<T>);
}

template <typename T>
void DefineWaits(py::module_& word) {
  word.def(
      "test",
      [](Address ivar, Cmp cmp, Value<T> value) {
        return ShmemTest<T>(RequireOwnWord<T>(ivar, "test"), cmp, value);
      },
      py::arg("ivar"), py::arg("cmp"), py::arg("value"), ReleaseGilOnDevice());
  word.def(
      "wait_until",
      [](Address ivar, Cmp cmp, Value<T> value) {
        Check(ShmemWaitUntil<T>(RequireOwnWord<T>(ivar, "wait_until"), cmp, value));
      },
      py::arg("ivar"), py::arg("cmp"), py::arg("value"), ReleaseGil());
}

void RegisterSignals(py::module_& module) {
  module.def(
      "signal_fetch",
      [](Address sig_addr) {
        return ShmemSignalFetch(RequireOwnWord<std::uint64_t>(sig_addr, "signal_fetch"));
      },
      py::arg("sig_addr"), ReleaseGilOnDevice());
  module.def(
      "signal_wait_until",
      [](Address sig_addr, Cmp cmp, Value<std::uint64_t> value) {
        const auto* word = RequireOwnWord<std::uint64_t>(sig_addr, "signal_wait_until");
        std::uint64_t seen = 0;
        Check(ShmemSignalWaitUntil(word, cmp, value, &seen));
        return seen;
      },
      py::arg("sig_addr"), py::arg("cmp"), py::arg("value"), ReleaseGil());
}

/// `p` and `g` of one type; integers are checked to fit, floats are rounded.
template <typename T>
void DefineElement(py::module_& element) {
  using Element = std::conditional_t<std::is_integral_v<T>, Value<T>, T>;
  element.def(
      "p", [](Address dest, Element value, Pe pe) { Check(ShmemP<T>(At<T>(dest), value, pe)); },
      py::arg("dest"), py::arg("value"), py::arg("pe"), ReleaseGilOnDevice());
  element.def(
      "g",
      [](Address source, Pe pe) {
        T value;
        Check(ShmemGetMem(&value, At<T>(source), sizeof(T), pe));
        return value;
      },
      py::arg("source"), py::arg("pe"), ReleaseGilOnDevice());
}

template <typename T>
void RegisterWord(py::module_& module, const char* name) {
  py::module_ word = module.def_submodule(name);
  DefineElement<T>(word);
  DefineAtomics<T>(word);
  DefineWaits<T>(word);
}

template <typename T>
void RegisterElement(py::module_& module, const char* name) {
  py::module_ element = module.def_submodule(name);
  DefineElement<T>(element);
}

}  // namespace

void RegisterMoriShmem(py::module_& module) {
  RegisterErrors(module);
  RegisterConstants(module);
  RegisterInit(module);
  RegisterQueries(module);
  RegisterMemory(module);
  RegisterTransfers(module);
  RegisterSignals(module);
  RegisterWord<std::int32_t>(module, "int32");
  RegisterWord<std::uint32_t>(module, "uint32");
  RegisterWord<std::int64_t>(module, "int64");
  RegisterWord<std::uint64_t>(module, "uint64");
  RegisterElement<float>(module, "float32");
  RegisterElement<double>(module, "float64");
  RegisterStreams(module);
  RegisterSymmetricView(module);
}

}  // namespace mori::shmem
