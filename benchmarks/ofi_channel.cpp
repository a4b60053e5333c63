// The channel over libfabric beside libfabric itself, with the same provider, in one run: two
// processes over the loopback, or another interface of this machine.
//
//   bench_ofi_channel [--interface lo --address 127.0.0.1] [--provider 'tcp;ofi_rxm'] [--block]
//
// The bare target has a progress thread of libfabric's own (FI_PROGRESS_AUTO), as ours has one; or
// spins, where a figure's variant says so.
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "common/figure.hpp"
#include "transport/factory.hpp"

namespace mori::bench {
namespace {

using namespace mori::shmem;

constexpr std::size_t kMemoryBytes = std::size_t{32} << 20;

struct Options {
  std::string interface = "lo";
  std::string address = "127.0.0.1";
  std::string provider = "tcp;ofi_rxm";
  bool blocks = false;  ///< waits do not spin
  std::string only;     ///< part of a figure's name and variant: "put_quiet/channel"
  int batches = 7;
  double batch_ms = 60;
};

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "BAD %s\n", what.c_str());
  std::_Exit(1);
}
void Require(bool holds, const char* what) {
  if (!holds) Fail(what);
}
void RequireDone(const Status& status) {
  if (!status.ok()) Fail(status.message());
}
void RequireZero(long result, const char* what) {
  if (result != 0) Fail(std::string(what) + ": " + fi_strerror(static_cast<int>(-result)));
}

/// The other process: what one sends with `Send` the other gets from `Receive`.
class Pipe {
 public:
  explicit Pipe(int fd) : fd_(fd) {}
  void Send(const void* data, std::size_t bytes) const {
    Require(::write(fd_, data, bytes) == static_cast<ssize_t>(bytes), "write to the other");
  }
  void Receive(void* data, std::size_t bytes) const {
    Require(::recv(fd_, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes),
            "the other process has ended");
  }
  void Meet() const {
    char byte = 0;
    Send(&byte, 1);
    Receive(&byte, 1);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

struct Card {
  char name[128];
  std::uint64_t name_bytes;
  RemotePlace place;
};

/// libfabric without a library around it.
class Bare {
 public:
  Bare(const Options& options, bool progresses_itself, void* memory) {
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->data_progress = progresses_itself ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
    hints->fabric_attr->prov_name = ::strdup(options.provider.c_str());
    RequireZero(
        fi_getinfo(FI_VERSION(1, 14), options.address.c_str(), nullptr, FI_SOURCE, hints, &info_),
        "fi_getinfo");
    fi_freeinfo(hints);
    RequireZero(fi_fabric(info_->fabric_attr, &fabric_, nullptr), "fi_fabric");
    RequireZero(fi_domain(fabric_, info_, &domain_, nullptr), "fi_domain");
    fi_av_attr av{};
    RequireZero(fi_av_open(domain_, &av, &av_, nullptr), "fi_av_open");
    fi_cq_attr cq{};
    cq.format = FI_CQ_FORMAT_CONTEXT;
    cq.wait_obj = options.blocks ? FI_WAIT_FD : FI_WAIT_NONE;
    RequireZero(fi_cq_open(domain_, &cq, &cq_, nullptr), "fi_cq_open");
    RequireZero(fi_endpoint(domain_, info_, &ep_, nullptr), "fi_endpoint");
    RequireZero(fi_ep_bind(ep_, &av_->fid, 0), "fi_ep_bind");
    RequireZero(fi_ep_bind(ep_, &cq_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    RequireZero(fi_enable(ep_), "fi_enable");
    RequireZero(fi_mr_reg(domain_, memory, kMemoryBytes, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 17, 0,
                          &mr_, nullptr),
                "fi_mr_reg");
    blocks_ = options.blocks;
  }
  Bare(const Bare&) = delete;
  ~Bare() {
    fi_close(&ep_->fid);
    fi_close(&mr_->fid);
    fi_close(&cq_->fid);
    fi_close(&av_->fid);
    fi_close(&domain_->fid);
    fi_close(&fabric_->fid);
    fi_freeinfo(info_);
  }

  void Meet(const Pipe& other) {
    Card mine{}, theirs{};
    mine.name_bytes = sizeof mine.name;
    RequireZero(fi_getname(&ep_->fid, mine.name, &mine.name_bytes), "fi_getname");
    mine.place.key = fi_mr_key(mr_);
    other.Send(&mine, sizeof mine);
    other.Receive(&theirs, sizeof theirs);
    Require(fi_av_insert(av_, theirs.name, 1, &peer_, 0, nullptr) == 1, "fi_av_insert");
    key_ = theirs.place.key;
  }

  /// Moves what others want, without completions of its own.
  void Progress() { fi_cq_read(cq_, nullptr, 0); }

  void Write(const void* from, std::size_t bytes) {
    iovec source{const_cast<void*>(from), bytes};
    fi_rma_iov target{0, bytes, key_};
    fi_msg_rma message{};
    message.msg_iov = &source;
    message.iov_count = 1;
    message.addr = peer_;
    message.rma_iov = &target;
    message.rma_iov_count = 1;
    Post([&] { return fi_writemsg(ep_, &message, FI_DELIVERY_COMPLETE); });
  }
  void Read(void* to, std::size_t bytes) {
    Post([&] { return fi_read(ep_, to, bytes, nullptr, peer_, 0, key_, nullptr); });
  }
  void FetchAdd() {
    Post([&] {
      return fi_fetch_atomic(ep_, &one_, 1, nullptr, &found_, nullptr, peer_, 0, key_, FI_UINT64,
                             FI_SUM, nullptr);
    });
  }
  /// Until no more than `left` are under way.
  void Await(std::size_t left) {
    while (under_way_ > left) {
      fi_cq_entry entries[16];
      const ssize_t count =
          blocks_ ? fi_cq_sread(cq_, entries, 16, nullptr, 1000) : fi_cq_read(cq_, entries, 16);
      if (count > 0) under_way_ -= static_cast<std::size_t>(count);
      Require(count > 0 || count == -FI_EAGAIN, "an operation failed");
    }
  }

 private:
  template <typename Call>
  void Post(Call call) {
    ssize_t result = 0;
    while ((result = call()) == -FI_EAGAIN) {
      if (under_way_ > 0)
        Await(under_way_ - 1);
      else
        Progress();
    }
    RequireZero(result, "post");
    ++under_way_;
  }

  fi_info* info_ = nullptr;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* av_ = nullptr;
  fid_cq* cq_ = nullptr;
  fid_ep* ep_ = nullptr;
  fid_mr* mr_ = nullptr;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::uint64_t key_ = 0, one_ = 1, found_ = 0;
  std::size_t under_way_ = 0;
  bool blocks_ = false;
};

/// Our channel.
class Ours {
 public:
  Ours(const Options& options, int self, void* memory) : self_(self) {
    Config config;
    config.network = Network::kOfi;
    config.ofi_provider = options.provider;
    config.socket_ifname = options.interface;
    RemoteParts parts;
    parts.self = self;
    parts.n_pes = 2;
    parts.may_spin = !options.blocks;
    auto made = MakeRemoteTransport(config, std::move(parts));
    RequireDone(made.status());
    transport_ = std::move(*made);
    auto registered = transport_->Register(memory, kMemoryBytes);
    RequireDone(registered.status());
    registration_ = std::move(*registered);
  }
  void Meet(const Pipe& other) {
    Card mine{}, theirs{};
    const Bytes address = transport_->Address();
    mine.name_bytes = address.size();
    Require(address.size() <= sizeof mine.name, "a long address");
    std::memcpy(mine.name, address.data(), address.size());
    mine.place = registration_->place();
    other.Send(&mine, sizeof mine);
    other.Receive(&theirs, sizeof theirs);
    std::vector<Bytes> addresses(2);
    addresses[static_cast<std::size_t>(1 - self_)].assign(theirs.name,
                                                          theirs.name + theirs.name_bytes);
    RequireDone(transport_->Connect(addresses, Deadline::Never()));
    place_ = theirs.place;
  }
  Channel& channel() const { return transport_->channel(); }
  RemotePlace place(std::size_t offset = 0) const { return {place_.address + offset, place_.key}; }

 private:
  int self_;
  std::unique_ptr<RemoteTransport> transport_;
  std::unique_ptr<Registration> registration_;
  RemotePlace place_;
};

void* MakeMemory() {
  void* memory = ::mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  Require(memory != MAP_FAILED, "no memory");
  return memory;
}

/// This thread alone to a CPU of its own, as threads that spin should be; its helpers, which are
/// there by now, run where there is room.
void Pin(int cpu) {
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0 || CPU_COUNT(&mask) < 2) return;
  for (int each = 0, left = cpu; each < CPU_SETSIZE; ++each) {
    if (!CPU_ISSET(each, &mask) || left-- > 0) continue;
    CPU_ZERO(&mask);
    CPU_SET(each, &mask);
    ::sched_setaffinity(0, sizeof mask, &mask);
    return;
  }
}

/// Rounds of a signal there and one back, as waits of the library do it.
void Exchange(const Ours& ours, std::byte* memory, int self, long rounds) {
  constexpr std::size_t kWord = 8192;
  auto* word = reinterpret_cast<std::uint64_t*>(memory + kWord);
  static std::uint64_t start = 0;  // rounds so far: the other side may already be ahead
  const auto send = [&] {
    RequireDone(ours.channel().PutSignal(1 - self, ours.place(0), memory, 8, ours.place(kWord), 1,
                                         SignalOp::kAdd));
  };
  for (std::uint64_t round = 1; round <= static_cast<std::uint64_t>(rounds); ++round) {
    if (self == 0) send();
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != start + round) ours.channel().Progress();
    if (self == 1) send();
  }
  start += static_cast<std::uint64_t>(rounds);
  RequireDone(ours.channel().Quiet(1 - self));
}

/// Serves until the other side closes the pipe; the bare endpoint spins while it is told to.
void RunTarget(const Options& options, const Pipe& other) {
  void* memory = MakeMemory();
  Bare automatic(options, true, memory), spinning(options, false, memory);
  automatic.Meet(other);
  spinning.Meet(other);
  Ours ours(options, 1, memory);
  ours.Meet(other);
  Pin(1);
  bool spins = false;
  for (;;) {
    char order = 0;
    const ssize_t got = ::recv(other.fd(), &order, 1, spins ? MSG_DONTWAIT : 0);
    if (got == 0) return;
    if (order == 'e') {
      long rounds = 0;
      other.Receive(&rounds, sizeof rounds);
      Exchange(ours, static_cast<std::byte*>(memory), 1, rounds);
    } else if (got == 1) {
      spins = order == 's';
      other.Send(&order, 1);
    } else {
      for (int i = 0; i < 100; ++i) spinning.Progress();
    }
  }
}

class Initiator {
 public:
  Initiator(const Options& options, Pipe other)
      : options_(options),
        other_(other),
        memory_(static_cast<std::byte*>(MakeMemory())),
        automatic_(options, true, memory_),
        spinning_(options, false, memory_) {
    automatic_.Meet(other_);
    spinning_.Meet(other_);
    ours_ = std::make_unique<Ours>(options, 0, memory_);
    ours_->Meet(other_);
    Pin(0);
  }

  void Run() {
    Latencies();
    Signals();
    Rates();
    for (const std::size_t bytes : {std::size_t{65536}, std::size_t{1} << 20}) Bandwidth(bytes);
  }

 private:
  Channel& channel() { return ours_->channel(); }

  Candidate BareOne(const char* metric, const char* variant, Bare* bare, std::size_t bytes,
                    std::function<void(Bare&)> post) {
    return {{metric, bytes, 2, variant, Unit::kUs}, [=, this](long rounds) {
              Spin(bare == &spinning_);
              for (long i = 0; i < rounds; ++i) {
                post(*bare);
                bare->Await(0);
              }
              Spin(false);
            }};
  }

  void Spin(bool spins) {
    const char order = spins ? 's' : 'b';
    char answer = 0;
    if (spins == target_spins_) return;
    target_spins_ = spins;
    other_.Send(&order, 1);
    other_.Receive(&answer, 1);
  }

  void Measure(std::vector<Candidate> all) {
    std::erase_if(all, [this](const Candidate& each) {
      return (each.label.metric + "/" + each.label.variant).find(options_.only) ==
             std::string::npos;
    });
    if (!all.empty()) MeasureInTurns(all, {options_.batches, options_.batch_ms});
  }

  void Signals() {
    Measure({{{"ofi_signal", 8, 2, "channel", Unit::kUs},
              [this](long rounds) {
                other_.Send("e", 1);
                other_.Send(&rounds, sizeof rounds);
                Exchange(*ours_, memory_, 0, rounds);
              },
              2}});
  }

  void Latencies() {
    const auto write = [this](Bare& bare) { bare.Write(memory_, 8); };
    const auto read = [this](Bare& bare) { bare.Read(memory_, 8); };
    const auto add = [](Bare& bare) { bare.FetchAdd(); };
    std::vector<Candidate> all;
    for (Bare* bare : {&automatic_, &spinning_}) {
      const char* variant = bare == &automatic_ ? "bare" : "bare_spinning_target";
      all.push_back(BareOne("ofi_put_quiet", variant, bare, 8, write));
      all.push_back(BareOne("ofi_get", variant, bare, 8, read));
      all.push_back(BareOne("ofi_fetch_add", variant, bare, 8, add));
    }
    const auto ours = [](const char* metric, std::function<Status()> call) {
      return Candidate{{metric, 8, 2, "channel", Unit::kUs}, [call](long rounds) {
                         for (long i = 0; i < rounds; ++i) RequireDone(call());
                       }};
    };
    all.push_back(ours("ofi_put_quiet", [this] {
      const Status put = channel().Put(1, ours_->place(), memory_, 8);
      return put.ok() ? channel().Quiet(1) : put;
    }));
    all.push_back(ours("ofi_get", [this] { return channel().Get(1, memory_, ours_->place(), 8); }));
    all.push_back(ours("ofi_fetch_add", [this] {
      std::uint64_t found = 0;
      return channel().Fetch(1, ours_->place(), shmem::detail::AtomicOp::kFetchAdd, 8, 1, 0,
                             &found);
    }));
    Measure(all);
  }

  void Rates() {
    constexpr std::size_t kPuts = 1000;
    std::vector<Candidate> all;
    for (Bare* bare : {&automatic_, &spinning_}) {
      const char* variant = bare == &automatic_ ? "bare" : "bare_spinning_target";
      all.push_back({{"ofi_put_rate", 8, 2, variant, Unit::kMops},
                     [=, this](long rounds) {
                       Spin(bare == &spinning_);
                       for (long i = 0; i < rounds; ++i) {
                         for (std::size_t put = 0; put < kPuts; ++put) {
                           bare->Write(memory_ + put * 8, 8);
                           bare->Await(256);
                         }
                         bare->Await(0);
                       }
                       Spin(false);
                     },
                     kPuts});
    }
    for (const std::size_t stride : {std::size_t{8}, std::size_t{64}}) {
      all.push_back(
          {{"ofi_put_rate", 8, 2, stride == 8 ? "channel" : "channel_strided", Unit::kMops},
           [=, this](long rounds) {
             for (long i = 0; i < rounds; ++i) {
               for (std::size_t put = 0; put < kPuts; ++put)
                 RequireDone(channel().PutNbi(1, ours_->place(put * stride), memory_ + put * 8, 8));
               RequireDone(channel().Quiet(1));
             }
           },
           kPuts});
    }
    Measure(all);
  }

  void Bandwidth(std::size_t bytes) {
    constexpr std::size_t kWindow = 16;
    std::vector<Candidate> all;
    const auto add = [&](const char* metric, const char* variant, std::function<void(long)> body) {
      all.push_back({{metric, bytes, 2, variant, Unit::kGBps}, std::move(body)});
    };
    for (Bare* bare : {&automatic_, &spinning_}) {
      const char* variant = bare == &automatic_ ? "bare" : "bare_spinning_target";
      add("ofi_put_bandwidth", variant, [=, this](long rounds) {
        Spin(bare == &spinning_);
        for (long i = 0; i < rounds; ++i) {
          bare->Write(memory_, bytes);
          bare->Await(kWindow);
        }
        bare->Await(0);
        Spin(false);
      });
      add("ofi_get_bandwidth", variant, [=, this](long rounds) {
        Spin(bare == &spinning_);
        for (long i = 0; i < rounds; ++i) {
          bare->Read(memory_, bytes);
          bare->Await(kWindow);
        }
        bare->Await(0);
        Spin(false);
      });
      add("ofi_put_one_by_one", variant, [=, this](long rounds) {
        Spin(bare == &spinning_);
        for (long i = 0; i < rounds; ++i) {
          bare->Write(memory_, bytes);
          bare->Await(0);
        }
        Spin(false);
      });
    }
    add("ofi_put_bandwidth", "channel", [=, this](long rounds) {
      for (long i = 0; i < rounds; ++i)
        RequireDone(channel().PutNbi(1, ours_->place(), memory_, bytes));
      RequireDone(channel().Quiet(1));
    });
    add("ofi_get_bandwidth", "channel", [=, this](long rounds) {
      for (long i = 0; i < rounds; ++i)
        RequireDone(channel().GetNbi(1, memory_, ours_->place(), bytes));
      RequireDone(channel().Quiet(1));
    });
    add("ofi_put_one_by_one", "channel", [=, this](long rounds) {
      for (long i = 0; i < rounds; ++i)
        RequireDone(channel().Put(1, ours_->place(), memory_, bytes));
      RequireDone(channel().Quiet(1));
    });
    Measure(all);
  }

  const Options& options_;
  Pipe other_;
  std::byte* memory_;
  Bare automatic_, spinning_;
  std::unique_ptr<Ours> ours_;
  bool target_spins_ = false;
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("The channel over libfabric beside libfabric itself");
  app.add_option("--interface", options.interface, "of this machine, where both ends listen");
  app.add_option("--address", options.address, "that of the interface");
  app.add_option("--provider", options.provider, "of libfabric");
  app.add_flag("--block", options.blocks, "waits do not spin");
  app.add_option("--only", options.only, "figures with this in metric/variant");
  app.add_option("--batches", options.batches);
  app.add_option("--batch-ms", options.batch_ms);
  CLI11_PARSE(app, argc, argv);

  int ends[2];
  Require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    RunTarget(options, Pipe(ends[1]));
    std::_Exit(0);
  }
  ::close(ends[1]);
  Initiator(options, Pipe(ends[0])).Run();
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) { return mori::bench::Main(argc, argv); }
