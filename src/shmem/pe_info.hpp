// What each PE says of itself at init, and what all PEs must have alike.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "base/config.hpp"
#include "base/cpu_mask.hpp"
#include "base/status.hpp"
#include "base/text_pool.hpp"
#include "bootstrap/bootstrap.hpp"
#include "node/fd_exchange.hpp"
#include "runtime/device_runtime.hpp"

namespace mori::shmem {

/// Something that all PEs must have alike.
struct Setting {
  std::string name;   ///< of the variable behind it, where there is one
  std::string value;  ///< what was chosen, by the variable or without it
  std::string note;   ///< how it came about; need not be alike
};

/// Names and values of settings in short. Notes do not count.
using SettingsDigest = std::array<std::uint8_t, 16>;
SettingsDigest DigestOf(const std::vector<Setting>& settings);

/// A PE as all others know it. Texts are kept by a pool, once for all PEs.
struct PeInfo {
  int pe = 0;
  std::uint32_t process_id = 0;
  std::string_view host;
  std::string_view node_id;
  std::string_view machine;           ///< as `MachineId()`
  std::string_view device;            ///< as `DeviceRuntime::Identity()`
  std::uint32_t multiprocessors = 0;  ///< of the device; 0 for the host
  ByteView cpus;                      ///< of the thread that ran init: as a `CpuMask`
  FdListener::Token token{};
  SettingsDigest settings{};
};

/// Whether two PEs run under one boot of an operating system, whatever their nodes.
bool ShareAMachine(const PeInfo& a, const PeInfo& b);
/// Whether PEs of one node are on one machine. @return kMismatch with the first two that are not
Status CheckNodes(const std::vector<PeInfo>& pes);

/// What this PE chose.
std::vector<Setting> SettingsOf(const Config& config, const DeviceRuntime& runtime);
/// @param settings  of each PE
/// @return kMismatch with the first setting that a PE has differently from PE 0
Status CheckSettings(const std::vector<std::vector<Setting>>& settings);
/// Whether all PEs have chosen alike: by their digests, which all of them know; where these differ,
/// PEs exchange their settings in full. Collective.
/// @return as `CheckSettings()`, and the errors of the exchange
Status AgreeOnSettings(const std::vector<PeInfo>& pes, const std::vector<Setting>& mine,
                       Bootstrap* bootstrap, const WaitLimit& limit);

Bytes EncodePeInfo(const PeInfo& info);
/// @param texts  keeps what `PeInfo` has views of
Result<PeInfo> DecodePeInfo(int pe, ByteView bytes, TextPool* texts);

/// "PE 2 (host node7, process 4711)".
std::string NameOf(const PeInfo& info);

}  // namespace mori::shmem
