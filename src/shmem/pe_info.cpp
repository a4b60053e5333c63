#include "shmem/pe_info.hpp"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/text.hpp"
#include "heap/heap.hpp"

namespace mori::shmem {
namespace {

constexpr std::size_t kMaxText = 1024;
/// Of a mask: room for eight times as many CPUs.
constexpr std::size_t kMaxCpuBytes = 4096;

std::string OnOrOff(bool on) { return on ? "1" : "0"; }

}  // namespace

std::vector<Setting> SettingsOf(const Config& config, const DeviceRuntime& runtime) {
  return {{"MORI_SHMEM_BACKEND", std::string(BackendName(runtime.backend())), ""},  // others follow
          {"MORI_SHMEM_MODE", std::string(HeapModeName(config.heap_mode)), ""},
          {"MORI_SHMEM_HEAP_SIZE", FormatExactByteSize(HeapBytes(config, runtime)),
           config.heap_bytes ? "" : "not set: the memory of the device"},
          {"MORI_SHMEM_VMM_CHUNK_SIZE", FormatExactByteSize(ChunkBytes(config, runtime)), ""},
          {"the granularity of memory", FormatExactByteSize(runtime.GranularityBytes()), ""},
          {"MORI_SHMEM_HEAP_TYPE", std::string(HeapTypeName(config.heap_type)), ""},
          {"MORI_SHMEM_GPU_SHARING", std::string(GpuSharingName(runtime.sharing())), ""},
          {"MORI_SHMEM_TRANSPORT", std::string(NetworkName(config.network)), ""},
          {"MORI_OFI_PROVIDER", config.ofi_provider, ""},
          {"MORI_NUM_QP_PER_PE", std::to_string(config.num_qp_per_pe), ""},
          {"MORI_ENABLE_RAIL_ONLY", OnOrOff(config.enable_rail_only), ""},
          {"MORI_DISABLE_P2P", OnOrOff(config.disable_p2p), ""}};
}

Status CheckSettings(const std::vector<PeInfo>& pes) {
  const auto shown = [](const Setting& setting) {
    return setting.note.empty() ? setting.value
                                : fmt::format("{} ({})", setting.value, setting.note);
  };
  const auto& first = pes[0].settings;
  for (const PeInfo& other : pes) {
    for (std::size_t i = 0; i < std::min(first.size(), other.settings.size()); ++i) {
      const Setting& theirs = other.settings[i];
      if (first[i].name == theirs.name && first[i].value == theirs.value) continue;
      return Error(ErrorCode::kMismatch,
                   "{} must be the same on all PEs: PE 0 has {}, PE {} has {}", first[i].name,
                   shown(first[i]), other.pe, shown(theirs));
    }
    if (other.settings.size() != first.size()) {
      return Error(ErrorCode::kMismatch, "PE 0 has {} settings that must be alike, PE {} has {}",
                   first.size(), other.pe, other.settings.size());
    }
  }
  return Status();
}

Status CheckNodes(const std::vector<PeInfo>& pes) {
  std::map<std::string_view, const PeInfo*> known;  // of a node, one whose machine is known
  for (const PeInfo& pe : pes) {
    if (pe.machine.empty()) continue;
    const PeInfo& first = *known.emplace(pe.node_id, &pe).first->second;
    if (first.machine == pe.machine) continue;
    return Error(
        ErrorCode::kMismatch,
        "{} and {} have one name of their node, {}, but they are on different machines, or "
        "in different network namespaces, as separate containers are: give them different "
        "values of MORI_NODE_ID",
        NameOf(first), NameOf(pe), Quote(pe.node_id));
  }
  return Status();
}

Bytes EncodePeInfo(const PeInfo& info) {
  ByteWriter writer;
  writer.Text(info.host).Int(info.process_id).Text(info.node_id);
  writer.Text(info.machine).Text(info.device);
  writer.Int(info.multiprocessors);
  writer.Block(info.cpus);
  writer.Raw(info.token);
  writer.Int(static_cast<std::uint32_t>(info.settings.size()));
  for (const Setting& one : info.settings) writer.Text(one.name).Text(one.value).Text(one.note);
  return writer.Take();
}

Result<PeInfo> DecodePeInfo(int pe, ByteView bytes) {
  ByteReader reader(bytes);
  PeInfo info;
  info.pe = pe;
  info.host = reader.Text(kMaxText);
  info.process_id = reader.Int<std::uint32_t>();
  info.node_id = reader.Text(kMaxText);
  info.machine = reader.Text(kMaxText);
  info.device = reader.Text(kMaxText);
  info.multiprocessors = reader.Int<std::uint32_t>();
  const ByteView cpus = reader.Block(kMaxCpuBytes);
  info.cpus.assign(cpus.begin(), cpus.end());
  std::ranges::copy(reader.Raw(info.token.size()), info.token.begin());
  const auto count = reader.Int<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    std::string name = reader.Text(kMaxText);
    std::string value = reader.Text(kMaxText);
    info.settings.push_back({std::move(name), std::move(value), reader.Text(kMaxText)});
  }
  if (!reader.AtEnd())
    return Error(ErrorCode::kMismatch, "what PE {} says of itself is malformed", pe);
  return info;
}

std::string NameOf(const PeInfo& info) {
  return fmt::format("PE {} (host {}, process {})", info.pe, info.host, info.process_id);
}

}  // namespace mori::shmem
