// Python arguments in the types of the API, with this library's error where a value does not fit.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>

#include "mori/shmem/types.hpp"
#include "pybind/failure.hpp"

namespace mori::shmem {

/// A string literal as a template argument.
template <std::size_t kLength>
struct Literal {
  char text[kLength];
  consteval Literal(const char (&literal)[kLength]) {  // NOLINT: implicit
    std::copy_n(literal, kLength, text);
  }
};

/// A Python int that fits `T`; any other int is an invalid argument called `kName`.
template <typename T, Literal kName>
struct Integer {
  T value;
  operator T() const { return value; }  // NOLINT: implicit
};
using Address = Integer<std::uintptr_t, "address">;
using Size = Integer<std::size_t, "size">;
using Pe = Integer<int, "PE">;
template <typename T>
using Value = Integer<T, "value">;

/// An int for a message; Python refuses to write one of thousands of digits.
inline std::string Shown(const pybind11::object& integer) {
  constexpr std::size_t kMaxBits = 256;
  const auto bits = integer.attr("bit_length")().cast<std::size_t>();
  return bits <= kMaxBits ? pybind11::str(integer).cast<std::string>()
                          : "an integer of " + std::to_string(bits) + " bits";
}

template <typename T>
T* At(Address address) {
  return reinterpret_cast<T*>(address.value);
}

/// Bytes of an object with the buffer protocol, held until destruction.
class BufferBytes {
 public:
  BufferBytes(pybind11::handle object, bool writable) {
    const int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) throw pybind11::error_already_set();
  }
  BufferBytes(const BufferBytes&) = delete;
  BufferBytes& operator=(const BufferBytes&) = delete;
  ~BufferBytes() { PyBuffer_Release(&buffer_); }

  void* data() const { return buffer_.buf; }
  std::size_t size() const { return static_cast<std::size_t>(buffer_.len); }

 private:
  Py_buffer buffer_{};
};

/// The local side of a put or get: an address with a size, or a contiguous buffer, all of it or its
/// first `size` bytes. Holds the buffer until destruction, which needs the GIL.
class LocalBytes {
 public:
  LocalBytes(pybind11::handle object, std::optional<Size> size, bool writable) {
    // Of numpy, scalars are addresses and arrays are buffers; both have __index__.
    if (PyIndex_Check(object.ptr()) && !PySequence_Check(object.ptr())) {
      if (!size) throw Failure(ErrorCode::kInvalidArgument, "an address needs a size in bytes");
      data_ = At<void>(object.cast<Address>());
      size_ = *size;
      return;
    }
    buffer_.emplace(object, writable);
    data_ = buffer_->data();
    size_ = size ? size->value : buffer_->size();
    if (size_ > buffer_->size()) {
      throw Failure(ErrorCode::kInvalidArgument, "size is " + std::to_string(size_) +
                                                     " bytes, but the buffer has " +
                                                     std::to_string(buffer_->size()));
    }
  }

  void* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::optional<BufferBytes> buffer_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace mori::shmem

namespace pybind11::detail {

template <typename T, mori::shmem::Literal kName>
struct type_caster<mori::shmem::Integer<T, kName>> {
  using Target = mori::shmem::Integer<T, kName>;
  PYBIND11_TYPE_CASTER(Target, const_name("int"));

  bool load(handle source, bool /*convert*/) {
    if (!source || !PyIndex_Check(source.ptr())) return false;
    const object index = reinterpret_steal<object>(PyNumber_Index(source.ptr()));
    if (!index) throw error_already_set();
    using Wide = std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>;
    Wide wide;
    if constexpr (std::is_signed_v<T>) {
      wide = PyLong_AsLongLong(index.ptr());
    } else {
      wide = PyLong_AsUnsignedLongLong(index.ptr());
    }
    const bool overflowed = PyErr_Occurred() != nullptr;
    PyErr_Clear();
    constexpr Wide kMin = std::numeric_limits<T>::min();
    constexpr Wide kMax = std::numeric_limits<T>::max();
    if (overflowed || wide < kMin || wide > kMax) {
      throw mori::shmem::Failure(mori::shmem::ErrorCode::kInvalidArgument,
                                 std::string(kName.text) + " is " + mori::shmem::Shown(index) +
                                     "; it must be " + std::to_string(kMin) + " to " +
                                     std::to_string(kMax));
    }
    value.value = static_cast<T>(wide);
    return true;
  }
};

}  // namespace pybind11::detail
