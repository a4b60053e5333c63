#include "transport/ofi/endpoint.hpp"

#include <algorithm>

namespace mori::shmem::ofi {
namespace {

constexpr std::size_t kMaxNameBytes = 128;

template <typename Object, typename Call>
Status OpenFid(const Library& library, Fid<Object>* to, std::string_view what, Call call) {
  Object* opened = nullptr;
  MORI_RETURN_IF_ERROR(library.Check(call(&opened), what));
  *to = Fid<Object>(opened, CloseFid());
  return Status();
}

}  // namespace

Result<std::shared_ptr<Endpoint>> Endpoint::Open(const Library* library, Info info) {
  std::shared_ptr<Endpoint> endpoint(new Endpoint(library, std::move(info)));
  MORI_RETURN_IF_ERROR(endpoint->OpenAll());
  MORI_RETURN_IF_ERROR(endpoint->ReadName());
  return endpoint;
}

Status Endpoint::OpenAll() {
  const std::string name = DescribeProvider(*info_);
  const auto what = [&](const char* step) { return fmt::format("{}: {}", name, step); };
  MORI_RETURN_IF_ERROR(OpenFid(*library_, &fabric_, what("open the fabric"), [&](auto** out) {
    return library_->open_fabric(info_->fabric_attr, out, nullptr);
  }));
  MORI_RETURN_IF_ERROR(OpenFid(*library_, &domain_, what("open the domain"), [&](auto** out) {
    return ::fi_domain(fabric_.get(), info_.get(), out, nullptr);
  }));
  fi_av_attr av{};
  av.type = FI_AV_TABLE;
  MORI_RETURN_IF_ERROR(
      OpenFid(*library_, &addresses_, what("open an address table"),
              [&](auto** out) { return ::fi_av_open(domain_.get(), &av, out, nullptr); }));
  fi_cq_attr cq{};
  cq.format = FI_CQ_FORMAT_MSG;
  cq.wait_obj = FI_WAIT_FD;
  MORI_RETURN_IF_ERROR(
      OpenFid(*library_, &queue_, what("open a completion queue"),
              [&](auto** out) { return ::fi_cq_open(domain_.get(), &cq, out, nullptr); }));
  MORI_RETURN_IF_ERROR(OpenFid(*library_, &endpoint_, what("open an endpoint"), [&](auto** out) {
    return ::fi_endpoint(domain_.get(), info_.get(), out, nullptr);
  }));
  MORI_RETURN_IF_ERROR(library_->Check(::fi_ep_bind(endpoint_.get(), &addresses_->fid, 0),
                                       what("bind the address table")));
  MORI_RETURN_IF_ERROR(
      library_->Check(::fi_ep_bind(endpoint_.get(), &queue_->fid, FI_TRANSMIT | FI_RECV),
                      what("bind the completion queue")));
  MORI_RETURN_IF_ERROR(library_->Check(::fi_enable(endpoint_.get()), what("enable the endpoint")));
  return library_->Check(::fi_control(&queue_->fid, FI_GETWAIT, &wait_descriptor_),
                         what("ask for a descriptor to wait on"));
}

Status Endpoint::ReadName() {
  name_.resize(kMaxNameBytes);
  std::size_t bytes = name_.size();
  MORI_RETURN_IF_ERROR(
      library_->Check(::fi_getname(&endpoint_->fid, name_.data(), &bytes), "name of an endpoint"));
  name_.resize(std::min(bytes, name_.size()));
  connections_ = std::make_unique<Connections>(name_);
  connections_->CloseOnExec();
  return Status();
}

Result<fi_addr_t> Endpoint::Insert(ByteView name) {
  fi_addr_t address = FI_ADDR_NOTAVAIL;
  const int inserted = ::fi_av_insert(addresses_.get(), name.data(), 1, &address, 0, nullptr);
  if (inserted == 1) {
    connections_->Add(name);
    return address;
  }
  return Error(ErrorCode::kInvalidArgument, "libfabric takes no address of {} bytes: {}",
               name.size(), inserted < 0 ? library_->ErrorText(inserted) : "no reason given");
}

Result<Region> Endpoint::Register(void* start, std::uint64_t bytes, std::uint64_t key) {
  Region region;
  constexpr std::uint64_t kAccess = FI_REMOTE_READ | FI_REMOTE_WRITE;
  const int mode = info_->domain_attr->mr_mode;
  MORI_RETURN_IF_ERROR(
      OpenFid(*library_, &region.handle, fmt::format("register {} bytes", bytes), [&](auto** out) {
        return ::fi_mr_reg(domain_.get(), start, bytes, kAccess, 0, key, 0, out, nullptr);
      }));
  if ((mode & FI_MR_ENDPOINT) != 0) {
    MORI_RETURN_IF_ERROR(library_->Check(::fi_mr_bind(region.handle.get(), &endpoint_->fid, 0),
                                         "bind registered memory"));
    MORI_RETURN_IF_ERROR(
        library_->Check(::fi_mr_enable(region.handle.get()), "enable registered memory"));
  }
  region.place.key = ::fi_mr_key(region.handle.get());
  if (region.place.key == FI_KEY_NOTAVAIL)
    return Error(ErrorCode::kUnsupported, "{}: keys of more than 64 bits", ProviderName(*info_));
  region.place.address =
      (mode & FI_MR_VIRT_ADDR) != 0 ? reinterpret_cast<std::uintptr_t>(start) : 0;
  return region;
}

ssize_t Endpoint::Write(fi_addr_t to, RemotePlace place, const void* from, std::size_t bytes,
                        void* context) const {
  iovec source{const_cast<void*>(from), bytes};
  fi_rma_iov target{place.address, bytes, place.key};
  fi_msg_rma message{};
  message.msg_iov = &source;
  message.iov_count = 1;
  message.addr = to;
  message.rma_iov = &target;
  message.rma_iov_count = 1;
  message.context = context;
  Handover::Give();
  return ::fi_writemsg(endpoint_.get(), &message, FI_DELIVERY_COMPLETE | FI_COMPLETION);
}

bool Endpoint::MayWait() const {
  fid* queue = &queue_->fid;
  return ::fi_trywait(fabric_.get(), &queue, 1) == FI_SUCCESS;
}

}  // namespace mori::shmem::ofi
