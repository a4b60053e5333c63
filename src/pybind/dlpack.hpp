// The part of the DLPack ABI, versions 0.x and 1.x, that an exporter of memory needs.
//
// https://dmlc.github.io/dlpack/latest/c_api.html fixes names, order and values.
#pragma once

#include <cstdint>

namespace mori::shmem::dlpack {

inline constexpr std::uint32_t kMajorVersion = 1;
inline constexpr std::uint32_t kMinorVersion = 0;
inline constexpr const char* kCapsuleName = "dltensor";
inline constexpr const char* kVersionedCapsuleName = "dltensor_versioned";
inline constexpr std::int32_t kDeviceCpu = 1;
inline constexpr std::int32_t kDeviceCuda = 2;

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;  ///< 0 int, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

struct VersionedManagedTensor {
  Version version;
  void* manager;
  void (*deleter)(VersionedManagedTensor*);
  std::uint64_t flags;
  Tensor tensor;
};

static_assert(sizeof(Tensor) == 48 && sizeof(ManagedTensor) == 64 &&
                  sizeof(VersionedManagedTensor) == 80,
              "other libraries read this layout");

}  // namespace mori::shmem::dlpack
