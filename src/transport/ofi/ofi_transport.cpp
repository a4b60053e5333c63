#include "transport/ofi/ofi_transport.hpp"

#include <sys/random.h>

#include <atomic>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "transport/ofi/channel.hpp"

namespace mori::shmem {
namespace {

using namespace ofi;

constexpr std::uint32_t kMagic = 0x4f46494d;  // "MIFO"
constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kMaxProviderBytes = 64;
constexpr std::size_t kMaxNameBytes = 128;

/// An address as it travels.
struct Whereabouts {
  int pe = 0;
  std::uint64_t token = 0;
  std::string provider;
  std::uint8_t family = 0;  ///< of its IP address: 4, 6, or 0
  Bytes name;
};

Bytes Encode(const Whereabouts& from) {
  return ByteWriter()
      .Int(kMagic)
      .Int(kVersion)
      .Int(from.pe)
      .Int(from.token)
      .Text(from.provider)
      .Int(from.family)
      .Block(from.name)
      .Take();
}

Result<Whereabouts> Decode(int pe, const Bytes& address) {
  ByteReader reader(address);
  Whereabouts at;
  const bool is_known =
      reader.Int<std::uint32_t>() == kMagic && reader.Int<std::uint8_t>() == kVersion;
  at.pe = reader.Int<int>();
  at.token = reader.Int<std::uint64_t>();
  at.provider = reader.Text(kMaxProviderBytes);
  at.family = reader.Int<std::uint8_t>();
  const ByteView name = reader.Block(kMaxNameBytes);
  at.name.assign(name.begin(), name.end());
  if (!is_known || !reader.AtEnd() || at.pe != pe || at.name.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "PE {} has sent {} bytes that are no address of this network", pe, address.size());
  }
  return at;
}

std::uint8_t FamilyOf(const fi_info& info) {
  const IpAddress address = SourceAddress(info);
  if (address == IpAddress()) return 0;
  return address.family == AF_INET ? 4 : 6;
}

/// Of a registration: its range is taken back before the network's handle goes.
class OfiRegistration final : public Registration {
 public:
  OfiRegistration(std::shared_ptr<Endpoint> endpoint, std::shared_ptr<Regions> regions,
                  Region region)
      : endpoint_(std::move(endpoint)), regions_(std::move(regions)), region_(std::move(region)) {}
  ~OfiRegistration() override { regions_->Remove(region_.place.key); }
  RemotePlace place() const override { return region_.place; }

 private:
  std::shared_ptr<Endpoint> endpoint_;  ///< outlives what is registered with it
  std::shared_ptr<Regions> regions_;
  Region region_;
};

/// Of memory that the network is not told of.
class OwnRegistration final : public Registration {
 public:
  OwnRegistration(std::shared_ptr<Regions> regions, RemotePlace place)
      : regions_(std::move(regions)), place_(place) {}
  ~OwnRegistration() override { regions_->Remove(place_.key); }
  RemotePlace place() const override { return place_; }

 private:
  std::shared_ptr<Regions> regions_;
  RemotePlace place_;
};

class OfiTransport final : public RemoteTransport {
 public:
  static Result<std::unique_ptr<RemoteTransport>> Open(const OfiOptions& options, RemoteParts parts,
                                                       std::shared_ptr<Endpoint> endpoint) {
    std::unique_ptr<OfiTransport> transport(new OfiTransport);
    transport->self_ = parts.self;
    transport->n_pes_ = parts.n_pes;
    transport->endpoint_ = endpoint;
    // For the token and the keys: who comes later to the same address and port has others.
    std::uint64_t random[2] = {};
    if (::getrandom(random, sizeof random, 0) != static_cast<ssize_t>(sizeof random))
      return Status::FromErrno(errno, "random numbers");
    transport->token_ = random[0];
    transport->next_key_ = random[1] | 1;
    const std::size_t key_bytes = endpoint->info().domain_attr->mr_key_size;
    if (key_bytes < sizeof(std::uint64_t))
      transport->key_mask_ = (std::uint64_t{1} << (8 * key_bytes)) - 1;
    transport->channel_ = std::make_unique<OfiChannel>(
        OfiChannel::Parts{std::move(parts), std::move(endpoint), transport->regions_,
                          transport->token_, options.connect_limit});
    MORI_RETURN_IF_ERROR(transport->channel_->Start());
    return std::unique_ptr<RemoteTransport>(std::move(transport));
  }

  std::string_view name() const override { return "ofi"; }
  std::string Describe() const override {
    return fmt::format("libfabric {}, {}", endpoint_->library().VersionText(),
                       DescribeProvider(endpoint_->info()));
  }

  Bytes Address() const override {
    return Encode({self_, token_, ProviderName(endpoint_->info()), FamilyOf(endpoint_->info()),
                   endpoint_->name()});
  }

  Status Connect(std::span<const Bytes> addresses, const Deadline&) override {
    if (addresses.size() != static_cast<std::size_t>(n_pes_)) {
      return Error(ErrorCode::kInvalidArgument, "{} addresses, for {} PEs", addresses.size(),
                   n_pes_);
    }
    std::vector<Whereabouts> others;
    for (int pe = 0; pe < n_pes_; ++pe) {
      const Bytes& address = addresses[static_cast<std::size_t>(pe)];
      if (pe == self_ || address.empty()) continue;
      MORI_ASSIGN_OR_RETURN(Whereabouts at, Decode(pe, address));
      MORI_RETURN_IF_ERROR(CheckMeets(at));
      others.push_back(std::move(at));
    }
    for (const Whereabouts& each : others) {
      MORI_ASSIGN_OR_RETURN(const fi_addr_t address, endpoint_->Insert(each.name));
      channel_->Connect(each.pe, address, each.token);
    }
    return Status();
  }

  Result<std::unique_ptr<Registration>> Register(void* start, std::uint64_t bytes) override {
    if (start == nullptr || bytes == 0)
      return Error(ErrorCode::kInvalidArgument, "register {} bytes at {}", bytes, start);
    MORI_ASSIGN_OR_RETURN(Region region,
                          endpoint_->Register(start, bytes, next_key_.fetch_add(1) & key_mask_));
    regions_->Add(region.place.key, region.place.address, start, bytes);
    return std::unique_ptr<Registration>(
        std::make_unique<OfiRegistration>(endpoint_, regions_, std::move(region)));
  }

  Result<std::unique_ptr<Registration>> RegisterThrough(RegionAccess* access, void* start,
                                                        std::uint64_t bytes) override {
    if (start == nullptr || bytes == 0)
      return Error(ErrorCode::kInvalidArgument, "register {} bytes at {}", bytes, start);
    const RemotePlace place{reinterpret_cast<std::uintptr_t>(start),
                            next_key_.fetch_add(1) | kByMessages};
    regions_->Add(place.key, place.address, start, bytes, access);
    return std::unique_ptr<Registration>(std::make_unique<OwnRegistration>(regions_, place));
  }

  Channel& channel() override { return *channel_; }

 private:
  OfiTransport() = default;

  Status CheckMeets(const Whereabouts& other) const {
    const std::string mine = ProviderName(endpoint_->info());
    if (other.provider != mine) {
      return Error(ErrorCode::kMismatch,
                   "PE {} uses the network {}, PE {} {}: MORI_OFI_PROVIDER names one for all",
                   self_, mine, other.pe, Quote(other.provider));
    }
    const std::uint8_t family = FamilyOf(endpoint_->info());
    if (other.family != family) {
      return Error(ErrorCode::kMismatch,
                   "PE {} has an address of IPv{} and PE {} one of IPv{}, which do not meet: "
                   "MORI_SOCKET_IFNAME chooses the interface",
                   self_, family, other.pe, other.family);
    }
    return Status();
  }

  int self_ = 0;
  int n_pes_ = 1;
  std::uint64_t token_ = 0;
  std::uint64_t key_mask_ = ~kByMessages;
  std::atomic<std::uint64_t> next_key_{0};
  std::shared_ptr<Endpoint> endpoint_;
  std::shared_ptr<Regions> regions_ = std::make_shared<Regions>();
  std::unique_ptr<OfiChannel> channel_;
};

}  // namespace

Result<std::unique_ptr<RemoteTransport>> MakeOfiTransport(const OfiOptions& options,
                                                          RemoteParts parts) {
  MORI_ASSIGN_OR_RETURN(const Library* library, OpenLibrary());
  MORI_ASSIGN_OR_RETURN(std::vector<Info> infos, FindProviders(library, options));
  Status first;
  for (Info& info : infos) {
    auto endpoint = Endpoint::Open(library, std::move(info));
    if (endpoint.ok()) return OfiTransport::Open(options, std::move(parts), std::move(*endpoint));
    LogDebug("network: {}", endpoint.status().message());
    if (first.ok()) first = endpoint.status();
  }
  return Error(ErrorCode::kUnsupported, "{}", first.message());
}

std::vector<std::string> DescribeOfi(const OfiOptions& options) {
  const auto library = OpenLibrary();
  if (!library.ok()) return {library.status().message()};
  const auto infos = FindProviders(*library, options);
  if (!infos.ok()) return {infos.status().message()};
  std::vector<std::string> lines;
  for (const Info& info : *infos) {
    lines.push_back(
        fmt::format("libfabric {}, {}", (*library)->VersionText(), DescribeProvider(*info)));
  }
  return lines;
}

}  // namespace mori::shmem
