// A device whose kernels do nothing: it writes down what it is asked for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/device_kernels.hpp"

namespace mori::shmem::testing {

class FakeKernels final : public DeviceKernels {
 public:
  std::vector<std::string> calls;    ///< launches, copies and notes, in order
  std::vector<void*> last_argument;  ///< the first argument's address of each launch
  const void* image = "image";
  std::string missing;       ///< the kernel that no module has
  std::uint64_t result = 0;  ///< what an atomic of the host finds
  unsigned processors = 4;   ///< multiprocessors
  bool is_broken = false;    ///< launches and copies fail
  int current = 0;           ///< calls of `OnDevice()` under way
  void* captured = nullptr;  ///< the stream that is captured into a graph
  Status mark_outcome;       ///< of `Mark()`
  bool passed = true;        ///< whether the device has come to all marks

  Result<Symbol> FindSymbol(void* module, const char* name) const override {
    return Symbol{module, std::string(name).size()};
  }
  Result<Symbol> FindSymbolInLibrary(void* library, const char* name) const override {
    return FindSymbol(library, name);
  }
  const void* LibraryImage() const override { return image; }
  Result<void*> LoadModule(const void* from) override { return const_cast<void*>(from); }
  Result<Kernel> FindKernel(void*, const char* name) const override {
    if (missing == name) return Error(ErrorCode::kSystem, "no {}", name);
    return Kernel{&names_.emplace(name, name).first->second, true};
  }
  Status Launch(const Kernel& kernel, unsigned blocks, unsigned threads, void** arguments,
                void*) const override {
    return Note(fmt::format("{}<{},{}>", Name(kernel), blocks, threads), arguments);
  }
  Status LaunchEarly(const Kernel& kernel, unsigned blocks, unsigned threads, void** arguments,
                     void*) const override {
    return Note(fmt::format("early {}<{},{}>", Name(kernel), blocks, threads), arguments);
  }
  Status CopyOnStream(void*, const void*, std::uint64_t bytes, void*) const override {
    return Note(fmt::format("copy {}", bytes), nullptr);
  }
  void* own_stream() const override { return const_cast<FakeKernels*>(this); }
  Status SynchronizeOwn() const override { return Status(); }
  bool IsCaptured(void* stream) const override { return stream != nullptr && stream == captured; }
  unsigned multiprocessors() const override { return processors; }
  Status NotePosted(void*, const char*) override { return Note("posted", nullptr); }
  Status AwaitPosted() override { return Note("await", nullptr); }
  Status AwaitDevice() const override { return Status(); }
  /// A mark that the device has come to once `passed` is set.
  Result<std::shared_ptr<DeviceMark>> Mark() const override {
    if (captured != nullptr) return Error(ErrorCode::kUnsupported, "a graph is captured");
    if (!mark_outcome.ok()) return mark_outcome;
    const_cast<FakeKernels*>(this)->calls.emplace_back("mark");
    return std::shared_ptr<DeviceMark>(std::make_shared<FakeMark>(this));
  }
  Status ReplaceIfHolds(void*, const void*, const void*, std::uint64_t) const override {
    return Status();
  }
  Result<std::shared_ptr<void>> MapHost(std::shared_ptr<void> memory, std::uint64_t) override {
    return memory;
  }
  void OnDevice(const std::function<void()>& call) const override {
    auto* self = const_cast<FakeKernels*>(this);
    ++self->current;
    call();
    --self->current;
  }

 private:
  class FakeMark final : public DeviceMark {
   public:
    explicit FakeMark(const FakeKernels* device) : device_(device) {}
    bool HasPassed() const override { return device_->passed; }
    Status Await(std::string_view what) const override {
      if (device_->passed) return Status();
      return Error(ErrorCode::kTimeout, "waited for {}", what);
    }

   private:
    const FakeKernels* device_;
  };

  static std::string Name(const Kernel& kernel) {
    return *static_cast<std::string*>(kernel.function);
  }
  Status Note(std::string call, void** arguments) const {
    if (is_broken) return Error(ErrorCode::kSystem, "broken");
    auto* self = const_cast<FakeKernels*>(this);
    self->calls.push_back(std::move(call));
    self->last_argument.push_back(arguments != nullptr ? arguments[0] : nullptr);
    // An atomic of the host: its last argument is where the result goes.
    if (self->calls.back() == "MoriShmemAtomic<1,1>")
      **static_cast<std::uint64_t**>(arguments[5]) = result;
    return Status();
  }

  mutable std::map<std::string, std::string> names_;
};

}  // namespace mori::shmem::testing
