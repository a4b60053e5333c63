// What each PE says of itself at init, and what all PEs must have alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/config.hpp"
#include "base/cpu_mask.hpp"
#include "base/status.hpp"
#include "node/fd_exchange.hpp"
#include "runtime/device_runtime.hpp"

namespace mori::shmem {

/// Something that all PEs must have alike.
struct Setting {
  std::string name;   ///< of the variable behind it, where there is one
  std::string value;  ///< what was chosen, by the variable or without it
  std::string note;   ///< how it came about; need not be alike
};

/// A PE as all others know it.
struct PeInfo {
  int pe = 0;
  std::string host;
  std::uint32_t process_id = 0;
  std::string node_id;
  std::string machine;                ///< as `MachineId()`
  std::string device;                 ///< as `DeviceRuntime::Identity()`
  std::uint32_t multiprocessors = 0;  ///< of the device; 0 for the host
  CpuMask cpus;                       ///< of the thread that ran init
  FdListener::Token token{};
  std::vector<Setting> settings;
};

/// Whether PEs of one node are on one machine. @return kMismatch with the first two that are not
Status CheckNodes(const std::vector<PeInfo>& pes);

/// What this PE chose.
std::vector<Setting> SettingsOf(const Config& config, const DeviceRuntime& runtime);
/// @return kMismatch with the first setting that a PE has differently from PE 0
Status CheckSettings(const std::vector<PeInfo>& pes);

Bytes EncodePeInfo(const PeInfo& info);
Result<PeInfo> DecodePeInfo(int pe, ByteView bytes);

/// "PE 2 (host node7, process 4711)".
std::string NameOf(const PeInfo& info);

}  // namespace mori::shmem
