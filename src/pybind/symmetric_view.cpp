// A view of symmetric memory that keeps it mapped: buffer protocol for numpy, DLPack for the
// others.
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "mori/shmem/shmem.hpp"
#include "pybind/arguments.hpp"
#include "pybind/dlpack.hpp"
#include "pybind/mori.hpp"

namespace py = pybind11;

namespace mori::shmem {
namespace {

/// Owns one handle of `ShmemRetainMemory()`, and, on request, the block that starts there.
/// Destroyed in any thread, with or without the GIL.
class RetainedMemory {
 public:
  RetainedMemory(std::byte* address, bool owns) : handle_(ShmemRetainMemory(address)) {
    if (handle_ == nullptr) throw Failure(ShmemLastErrorCode());
    if (!owns) return;
    block_ = ShmemOwnBlock(address);
    if (block_ != nullptr) return;
    ShmemReleaseMemory(handle_);
    throw Failure(ShmemLastErrorCode());
  }
  RetainedMemory(const RetainedMemory&) = delete;
  RetainedMemory& operator=(const RetainedMemory&) = delete;
  ~RetainedMemory() {
    ShmemDropBlock(block_);
    ShmemReleaseMemory(handle_);
  }

 private:
  void* handle_;
  void* block_ = nullptr;
};

/// `size` bytes of one PE's heap, mapped for as long as this or anything exported from it lives.
class SymmetricView {
 public:
  SymmetricView(Address address, Size size, std::optional<Pe> pe, bool owns) : size_(size) {
    const int owner = pe ? pe->value : ShmemMyPe();
    data_ = detail::MappedPointer(At<void>(address), size, owner, "view");
    if (data_ == nullptr) throw Failure(ShmemLastErrorCode());
    device_ = ShmemDevice();
    if (size_ > 0) memory_ = std::make_shared<RetainedMemory>(data_, owns);
  }

  std::byte* data() const { return data_; }
  dlpack::Device device() const {
    if (device_ < 0) return {dlpack::kDeviceCpu, 0};
    return {dlpack::kDeviceCuda, device_};
  }
  std::size_t size() const { return size_; }
  const std::shared_ptr<RetainedMemory>& memory() const { return memory_; }

 private:
  std::byte* data_;
  std::size_t size_;
  int device_;
  std::shared_ptr<RetainedMemory> memory_;
};

std::vector<std::int64_t> CompactStrides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

/// A DLPack tensor with what it points to. Its consumer calls the deleter from any thread, with or
/// without the GIL.
template <typename Managed>
struct Exported {
  Managed managed{};
  std::shared_ptr<RetainedMemory> memory;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;

  Exported(const SymmetricView& view, dlpack::DataType dtype, std::vector<std::int64_t> dimensions)
      : memory(view.memory()), shape(std::move(dimensions)), strides(CompactStrides(shape)) {
    managed.manager = this;
    managed.deleter = [](Managed* self) { delete static_cast<Exported*>(self->manager); };
    managed.tensor = {.data = view.data(),
                      .device = view.device(),
                      .dimensions = static_cast<std::int32_t>(shape.size()),
                      .dtype = dtype,
                      .shape = shape.data(),
                      .strides = strides.data(),
                      .byte_offset = 0};
  }
};

/// Passes `exported` to a capsule, which deletes the tensor unless a consumer renamed it.
template <typename Managed>
py::capsule MakeCapsule(std::unique_ptr<Exported<Managed>> exported, const char* name) {
  py::capsule capsule(&exported->managed, name, [](PyObject* self) {
    const char* current = PyCapsule_GetName(self);
    const bool consumed = current != nullptr && std::string_view(current).starts_with("used_");
    if (consumed) return;
    auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(self, current));
    managed->deleter(managed);
  });
  exported.release();  // NOLINT(bugprone-unused-return-value): the capsule owns it now
  return capsule;
}

py::capsule ExportDlpack(const SymmetricView& view, int code, int bits,
                         std::vector<std::int64_t> shape, bool versioned) {
  const dlpack::DataType dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
  if (!versioned) {
    using Plain = Exported<dlpack::ManagedTensor>;
    return MakeCapsule(std::make_unique<Plain>(view, dtype, std::move(shape)),
                       dlpack::kCapsuleName);
  }
  using Versioned = Exported<dlpack::VersionedManagedTensor>;
  auto exported = std::make_unique<Versioned>(view, dtype, std::move(shape));
  exported->managed.version = {dlpack::kMajorVersion, dlpack::kMinorVersion};
  return MakeCapsule(std::move(exported), dlpack::kVersionedCapsuleName);
}

}  // namespace

void RegisterSymmetricView(py::module_& module) {
  py::class_<SymmetricView>(module, "SymmetricView", py::buffer_protocol())
      .def(py::init<Address, Size, std::optional<Pe>, bool>(), py::arg("address"), py::arg("size"),
           py::arg("pe") = py::none(), py::arg("owns") = false, py::call_guard<ErrorsAreRaised>())
      .def_buffer([](SymmetricView& view) {
        if (view.device().type != dlpack::kDeviceCpu) {
          throw py::buffer_error(
              "the memory is a GPU's: use shmem_tensor() or shmem_dlpack(), or start with "
              "MORI_SHMEM_BACKEND=host");
        }
        const auto size = static_cast<py::ssize_t>(view.size());
        return py::buffer_info(view.data(), 1, "B", 1, {size}, {py::ssize_t{1}});
      })
      .def("dlpack", &ExportDlpack, py::arg("code"), py::arg("bits"), py::arg("shape"),
           py::arg("versioned"))
      .def("dlpack_device", [](const SymmetricView& view) {
        const dlpack::Device device = view.device();
        return std::pair<std::int32_t, std::int32_t>(device.type, device.id);
      });
}

}  // namespace mori::shmem
