#include "shmem/pe_info.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "base/sodium.hpp"
#include "base/text.hpp"
#include "heap/heap.hpp"

namespace mori::shmem {
namespace {

constexpr std::size_t kMaxText = 1024;
/// Of a mask: room for eight times as many CPUs.
constexpr std::size_t kMaxCpuBytes = 4096;

std::string OnOrOff(bool on) { return on ? "1" : "0"; }

std::string_view AsText(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Status Malformed(int pe) {
  return Error(ErrorCode::kMismatch, "what PE {} says of itself is malformed", pe);
}

Bytes EncodeSettings(const std::vector<Setting>& settings) {
  ByteWriter writer;
  for (const Setting& one : settings) writer.Text(one.name).Text(one.value).Text(one.note);
  return writer.Take();
}

std::optional<std::vector<Setting>> DecodeSettings(ByteView bytes) {
  std::vector<Setting> settings;
  ByteReader reader(bytes);
  while (reader.ok() && !reader.AtEnd()) {
    std::string name = reader.Text(kMaxText);
    std::string value = reader.Text(kMaxText);
    settings.push_back({std::move(name), std::move(value), reader.Text(kMaxText)});
  }
  return reader.ok() ? std::optional(std::move(settings)) : std::nullopt;
}

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

Status CheckSettings(const std::vector<std::vector<Setting>>& settings) {
  const auto shown = [](const Setting& setting) {
    const std::string value = setting.value.empty() ? "none" : setting.value;
    return setting.note.empty() ? value : fmt::format("{} ({})", value, setting.note);
  };
  const auto& first = settings[0];
  for (std::size_t pe = 1; pe < settings.size(); ++pe) {
    const auto& other = settings[pe];
    for (std::size_t i = 0; i < std::min(first.size(), other.size()); ++i) {
      const Setting& theirs = other[i];
      if (first[i].name == theirs.name && first[i].value == theirs.value) continue;
      return Error(ErrorCode::kMismatch,
                   "{} must be the same on all PEs: PE 0 has {}, PE {} has {}", first[i].name,
                   shown(first[i]), pe, shown(theirs));
    }
    if (other.size() != first.size()) {
      return Error(ErrorCode::kMismatch, "PE 0 has {} settings that must be alike, PE {} has {}",
                   first.size(), pe, other.size());
    }
  }
  return Status();
}

bool ShareAMachine(const PeInfo& a, const PeInfo& b) {
  const auto boot = [](const PeInfo& info) {
    return info.machine.substr(0, info.machine.find(' '));
  };
  return !boot(a).empty() && boot(a) == boot(b);
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

SettingsDigest DigestOf(const std::vector<Setting>& settings) {
  ByteWriter writer;
  for (const Setting& one : settings) writer.Text(one.name).Text(one.value);
  InitSodium();
  SettingsDigest digest;
  crypto_generichash(digest.data(), digest.size(), writer.bytes().data(), writer.bytes().size(),
                     nullptr, 0);
  return digest;
}

Status AgreeOnSettings(const std::vector<PeInfo>& pes, const std::vector<Setting>& mine,
                       Bootstrap* bootstrap, const WaitLimit& limit) {
  const auto is_first = [&](const PeInfo& info) { return info.settings == pes[0].settings; };
  if (std::ranges::all_of(pes, is_first)) return Status();
  MORI_ASSIGN_OR_RETURN(const auto messages, bootstrap->AllGather(EncodeSettings(mine), limit));
  std::vector<std::vector<Setting>> settings;
  for (std::size_t pe = 0; pe < messages.size(); ++pe) {
    auto theirs = DecodeSettings(messages[pe]);
    if (!theirs) return Malformed(static_cast<int>(pe));
    settings.push_back(std::move(*theirs));
  }
  MORI_RETURN_IF_ERROR(CheckSettings(settings));
  return Error(ErrorCode::kMismatch, "PEs have different digests of the same settings");
}

Bytes EncodePeInfo(const PeInfo& info) {
  ByteWriter writer;
  writer.Int(info.process_id).Text(info.host).Text(info.node_id);
  writer.Text(info.machine).Text(info.device);
  writer.Int(info.multiprocessors);
  writer.Block(info.cpus);
  return writer.Raw(info.token).Raw(info.settings).Take();
}

Result<PeInfo> DecodePeInfo(int pe, ByteView bytes, TextPool* texts) {
  ByteReader reader(bytes);
  const auto text = [&] { return texts->Keep(AsText(reader.Block(kMaxText))); };
  PeInfo info;
  info.pe = pe;
  info.process_id = reader.Int<std::uint32_t>();
  info.host = text();
  info.node_id = text();
  info.machine = text();
  info.device = text();
  info.multiprocessors = reader.Int<std::uint32_t>();
  const std::string_view cpus = texts->Keep(AsText(reader.Block(kMaxCpuBytes)));
  info.cpus = {reinterpret_cast<const std::uint8_t*>(cpus.data()), cpus.size()};
  std::ranges::copy(reader.Raw(info.token.size()), info.token.begin());
  std::ranges::copy(reader.Raw(info.settings.size()), info.settings.begin());
  if (!reader.AtEnd()) return Malformed(pe);
  return info;
}

std::string NameOf(const PeInfo& info) {
  return fmt::format("PE {} (host {}, process {})", info.pe, info.host, info.process_id);
}

}  // namespace mori::shmem
