#include "transport/ofi/provider.hpp"

#include <fmt/format.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "base/text.hpp"

namespace mori::shmem::ofi {
namespace {

/// The interface's version that is asked for: that of Debian 12 and of all since knows it.
constexpr std::uint32_t kVersion = FI_VERSION(1, 14);

/// Taken unasked, best first. Others, as shm and sockets, only by name.
constexpr std::array<std::string_view, 5> kPreferred{"cxi", "efa", "verbs;ofi_rxm", "tcp;ofi_rxm",
                                                     "tcp"};
/// Whose endpoints have IP addresses: the interface is chosen by one.
constexpr std::array<std::string_view, 3> kOverIp{"tcp;ofi_rxm", "tcp", "verbs;ofi_rxm"};

template <std::size_t kCount>
std::size_t IndexOf(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

Info MakeHints(const Library* library, const std::string& provider) {
  Info hints(library->duplicate_info(nullptr), FreeInfo{library});
  if (hints == nullptr) return hints;
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->msg_order = FI_ORDER_SAS;
  hints->rx_attr->msg_order = FI_ORDER_SAS;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  // Our own thread makes it move: one that is the provider's would wake beside it.
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->mr_mode = FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ENDPOINT;
  if (!provider.empty()) hints->fabric_attr->prov_name = ::strdup(provider.c_str());
  return hints;
}

/// All that libfabric has for `provider` at `node`, one by one.
Result<std::vector<Info>> Ask(const Library* library, const std::string& provider,
                              const std::string& node) {
  const Info hints = MakeHints(library, provider);
  if (hints == nullptr) return Status::NoHostMemory();
  fi_info* found = nullptr;
  const int result = library->get_info(kVersion, node.empty() ? nullptr : node.c_str(), nullptr,
                                       node.empty() ? 0 : FI_SOURCE, hints.get(), &found);
  if (result == -FI_ENODATA || result == -FI_ENOSYS) return std::vector<Info>();
  MORI_RETURN_IF_ERROR(library->Check(result, "ask libfabric for providers"));
  const Info list(found, FreeInfo{library});
  std::vector<Info> all;
  for (const fi_info* each = list.get(); each != nullptr; each = each->next)
    all.emplace_back(library->duplicate_info(each), FreeInfo{library});
  return all;
}

bool Serves(const fi_info& info) {
  constexpr int kKnown = FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ENDPOINT;
  return (info.domain_attr->mr_mode & ~kKnown) == 0 && info.ep_attr->max_msg_size >= 4096 &&
         (info.tx_attr->msg_order & FI_ORDER_SAS) != 0;
}

std::string AddressText(const std::vector<IpAddress>& addresses) {
  std::vector<std::string> texts;
  for (const IpAddress& each : addresses) texts.push_back(each.ToString());
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

std::string ProviderName(const fi_info& info) {
  return info.fabric_attr->prov_name != nullptr ? info.fabric_attr->prov_name : "";
}

IpAddress SourceAddress(const fi_info& info) {
  sockaddr_storage name{};
  if (info.src_addr != nullptr && info.src_addrlen <= sizeof name)
    std::memcpy(&name, info.src_addr, info.src_addrlen);
  return IpAddress::Of(name);
}

std::string DescribeProvider(const fi_info& info) {
  const char* domain = info.domain_attr->name != nullptr ? info.domain_attr->name : "?";
  const IpAddress address = SourceAddress(info);
  const std::string at = address == IpAddress() ? "" : fmt::format(" ({})", address.ToString());
  return OneLine(fmt::format("{} over {}{}", ProviderName(info), domain, at));
}

Result<std::vector<Info>> FindProviders(const Library* library, const OfiOptions& options) {
  std::vector<std::string> wanted{options.provider};
  if (options.provider.empty()) wanted.assign(kPreferred.begin(), kPreferred.end());
  std::vector<Info> found;
  std::set<std::string> seen;  // libfabric repeats itself
  const auto keep = [&](std::vector<Info> infos) {
    for (Info& each : infos) {
      if (Serves(*each) && seen.insert(DescribeProvider(*each)).second)
        found.push_back(std::move(each));
    }
  };
  for (const std::string& provider : wanted) {
    const bool over_ip = IndexOf(kOverIp, provider) < kOverIp.size();
    if (!over_ip) {
      MORI_ASSIGN_OR_RETURN(auto infos, Ask(library, provider, ""));
      keep(std::move(infos));
      continue;
    }
    for (const IpAddress& address : options.addresses) {
      MORI_ASSIGN_OR_RETURN(auto infos, Ask(library, provider, address.ToString()));
      keep(std::move(infos));
    }
  }
  if (!found.empty()) return found;
  if (!options.provider.empty()) {
    return Error(ErrorCode::kUnsupported,
                 "MORI_OFI_PROVIDER={}: libfabric {} has no such provider with messages, reads and "
                 "writes at {}; `fi_info -l` lists those there are",
                 Quote(options.provider), library->VersionText(), AddressText(options.addresses));
  }
  return Error(ErrorCode::kUnsupported, "libfabric {} has no provider that serves at {}: tried {}",
               library->VersionText(), AddressText(options.addresses), fmt::join(kPreferred, ", "));
}

}  // namespace mori::shmem::ofi
