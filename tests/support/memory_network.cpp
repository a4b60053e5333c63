#include "support/memory_network.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "base/element_copy.hpp"
#include "base/text.hpp"
#include "transport/ofi/regions.hpp"

namespace mori::shmem::testing {
namespace {

using detail::AtomicOp;
using Lock = std::unique_lock<std::mutex>;

constexpr std::uint32_t kMagic = 0x4d454d31;
constexpr std::chrono::milliseconds kAskEvery{20};

template <typename T>
T Apply(std::atomic_ref<T> word, AtomicOp op, T value, T expected) {
  // The strongest order, so that no test depends on more than the order of the operations.
  constexpr auto kOrder = std::memory_order_seq_cst;
  switch (op) {
    case AtomicOp::kFetch: return word.load(kOrder);
    case AtomicOp::kSet:
    case AtomicOp::kSwap: return word.exchange(value, kOrder);
    case AtomicOp::kFetchAdd: return word.fetch_add(value, kOrder);
    case AtomicOp::kFetchAnd: return word.fetch_and(value, kOrder);
    case AtomicOp::kFetchOr: return word.fetch_or(value, kOrder);
    case AtomicOp::kFetchXor: return word.fetch_xor(value, kOrder);
    case AtomicOp::kCompareSwap: word.compare_exchange_strong(expected, value, kOrder);
  }
  return expected;
}

std::uint64_t ApplyTo(void* memory, AtomicOp op, int width, std::uint64_t value,
                      std::uint64_t expected) {
  if (width == 4) {
    return Apply<std::uint32_t>(std::atomic_ref(*static_cast<std::uint32_t*>(memory)), op,
                                static_cast<std::uint32_t>(value),
                                static_cast<std::uint32_t>(expected));
  }
  return Apply<std::uint64_t>(std::atomic_ref(*static_cast<std::uint64_t*>(memory)), op, value,
                              expected);
}

/// Becomes true, with its outcome, once an operation is done.
struct Ticket {
  bool is_done = false;
  Status status;
  std::uint64_t found = 0;
};

struct Operation {
  enum class What { kWrite, kRead, kAtomic };
  What what = What::kWrite;
  int from = 0;
  int to = 0;
  RemotePlace place;
  Bytes copy;                    ///< of what is written, where the source may change
  const void* source = nullptr;  ///< otherwise
  void* target = nullptr;        ///< of a read
  std::uint64_t bytes = 0;
  AtomicOp op = AtomicOp::kFetch;
  int width = 8;
  std::uint64_t value = 0;
  std::uint64_t expected = 0;
  std::uint64_t epoch = 0;                ///< fences before it
  std::shared_ptr<std::size_t> follows;   ///< pieces that come before it
  std::shared_ptr<std::size_t> piece_of;  ///< what follows this piece
  std::shared_ptr<Ticket> ticket;         ///< of who waits for this one
  bool is_told = false;                   ///< by `Tell()`: of no fence, and of no quiet
  bool is_ordered() const { return what != What::kRead && !is_told; }
};

}  // namespace

class MemoryNetwork::State {
 public:
  explicit State(const Options& options)
      : options_(options),
        random_(options.seed),
        ends_(static_cast<std::size_t>(options.n_pes)),
        thread_([this] { Run(); }) {}
  ~State() {
    Stop();
    thread_.join();
  }

  const Options& options() const { return options_; }
  std::uint64_t id() const { return reinterpret_cast<std::uintptr_t>(this); }

  void Join(RemoteParts parts) {
    const Lock lock(mutex_);
    End& joined = end(parts.self);
    joined = End();
    joined.parts = std::move(parts);
    joined.is_here = true;
  }

  void Leave(int pe) {
    const Lock lock(mutex_);
    end(pe).is_here = false;
    Drop([pe](const Operation& each) { return each.from == pe; }, Gone(pe, "it left"));
  }

  RemotePlace Register(int pe, RegionAccess* access, void* start, std::uint64_t bytes) {
    const Lock lock(mutex_);
    // Neither the address of this process nor 0: who takes one for the other is found out.
    // Aligned as the memory is, so that the pieces of a write end between words.
    const std::uint64_t misfit = reinterpret_cast<std::uintptr_t>(start) % 4096;
    const RemotePlace place{(random_() << 16 >> 4) + misfit, random_()};
    regions_[{pe, place.key}] = {place.address, static_cast<std::byte*>(start), bytes, access};
    return place;
  }
  void Unregister(int pe, std::uint64_t key) {
    const Lock lock(mutex_);
    regions_.erase({pe, key});
  }

  void Note(Posted posted) {
    const Lock lock(mutex_);
    posts_.push_back(posted);
  }
  std::vector<Posted> TakePosts() {
    const Lock lock(mutex_);
    return std::exchange(posts_, {});
  }

  void SetHeld(bool held) {
    const Lock lock(mutex_);
    is_held_ = held;
    changed_.notify_all();
  }

  void Fence(int pe) {
    const Lock lock(mutex_);
    if (options_.keeps_fences) ++end(pe).epoch;
  }

  /// Takes an operation on, or says why not.
  Status Take(Operation operation) {
    const Lock lock(mutex_);
    return TakeOn(std::move(operation));
  }

  /// A write in pieces, whose words stay whole, and what follows it.
  Status TakeWrite(Operation write, std::optional<Operation> then) {
    const Lock lock(mutex_);
    const auto pieces = std::make_shared<std::size_t>(0);
    for (Operation& piece : Pieces(std::move(write))) {
      piece.piece_of = pieces;
      ++*pieces;
      MORI_RETURN_IF_ERROR(TakeOn(std::move(piece)));
    }
    if (!then) return Status();
    then->follows = pieces;
    return TakeOn(std::move(*then));
  }

  /// Takes an operation on and waits for it.
  Status Await(Operation operation, std::uint64_t* found) {
    const int self = operation.from;
    const auto ticket = std::make_shared<Ticket>();
    operation.ticket = ticket;
    Lock lock(mutex_);
    MORI_RETURN_IF_ERROR(TakeOn(std::move(operation)));
    const Status waited = Wait(&lock, self, [&] { return ticket->is_done; });
    if (!waited.ok()) {  // what nobody waits for any more must not touch its memory
      Drop([&](const Operation& each) { return each.ticket == ticket; }, waited);
      return waited;
    }
    if (found != nullptr) *found = ticket->found;
    return ticket->status;
  }

  /// Of one PE, or of all where `to` is -1.
  Status Quiet(int self, int to) {
    Lock lock(mutex_);
    MORI_RETURN_IF_ERROR(Wait(&lock, self, [&] { return CountOf(self, to) == 0; }));
    Status told;
    std::map<int, Status>& failures = end(self).failures;
    for (auto each = failures.begin(); each != failures.end();) {
      const bool is_told = to == -1 || each->first == to;
      if (is_told && told.ok()) told = each->second;
      each = is_told ? failures.erase(each) : std::next(each);
    }
    if (told.ok() && to != -1 && !end(to).loss.ok()) return end(to).loss;
    return told;
  }

  std::uint64_t Arrivals(int self) {
    const Lock lock(mutex_);
    return end(self).arrivals;
  }
  void AwaitArrival(int self, std::uint64_t seen, std::chrono::nanoseconds limit) {
    Lock lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return end(self).arrivals != seen; });
  }

  void Lose(int pe, const std::string& why) {
    std::vector<std::function<void(int, const std::string&)>> told;
    {
      const Lock lock(mutex_);
      if (!end(pe).loss.ok()) return;
      end(pe).loss = Gone(pe, why);
      Drop([pe](const Operation& each) { return each.from == pe || each.to == pe; }, end(pe).loss);
      for (int other = 0; other < options_.n_pes; ++other) {
        if (other != pe && end(other).is_here) told.push_back(end(other).parts.on_loss);
      }
    }
    for (const auto& tell : told) {
      if (tell) tell(pe, why);
    }
  }

 private:
  struct End {
    RemoteParts parts;
    bool is_here = false;
    std::uint64_t epoch = 0;
    std::uint64_t arrivals = 0;  ///< of what others have done here
    Status loss;
    std::map<int, Status> failures;  ///< by PE: the first of what no quiet has told
  };
  struct Region {
    std::uint64_t address = 0;
    std::byte* start = nullptr;
    std::uint64_t bytes = 0;
    RegionAccess* access = nullptr;
  };

  /// Carries operations out until `Stop()`.
  void Run() {
    Lock lock(mutex_);
    while (!is_stopped_) {
      if (queue_.empty() || is_held_) {
        changed_.wait(lock);
        continue;
      }
      // Mostly where little is under way, so that more comes to choose from.
      if (random_() % (queue_.size() < 4 ? 2 : 32) == 0) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        lock.lock();
        continue;
      }
      const std::size_t chosen = Choose();
      std::swap(queue_[chosen], queue_.back());
      Operation operation = std::move(queue_.back());
      queue_.pop_back();
      Finish(&operation, CarryOut(operation));
    }
  }
  void Stop() {
    const Lock lock(mutex_);
    is_stopped_ = true;
    changed_.notify_all();
  }

  static Status Gone(int pe, const std::string& why) {
    return Error(ErrorCode::kPeerLost, "PE {} is lost: {}", pe, why);
  }

  End& end(int pe) { return ends_.at(static_cast<std::size_t>(pe)); }

  Status TakeOn(Operation operation) {
    if (!end(operation.from).loss.ok()) return end(operation.from).loss;
    if (!end(operation.to).loss.ok()) return end(operation.to).loss;
    operation.epoch = end(operation.from).epoch;
    if (!operation.is_told) ++open_[{operation.from, operation.to}];
    if (operation.is_ordered()) ++epochs_[{operation.from, operation.to}][operation.epoch];
    if (options_.reorders || is_held_ || !queue_.empty()) {
      queue_.push_back(std::move(operation));
      changed_.notify_all();
    } else {
      Finish(&operation, CarryOut(operation));
    }
    return Status();
  }

  std::vector<Operation> Pieces(Operation write) {
    constexpr std::size_t kLine = 64;
    std::vector<Operation> pieces;
    const std::size_t most = options_.reorders ? 1 + random_() % 4 : 1;
    const std::size_t step = (static_cast<std::size_t>(write.bytes) / most + kLine) / kLine * kLine;
    for (std::size_t at = 0; at < write.bytes;) {
      // To the end of a line at the target, where no word is cut.
      const std::size_t misfit = (write.place.address + at) % kLine;
      const std::size_t bytes = std::min<std::size_t>(write.bytes - at, step - misfit);
      Operation piece = write;
      piece.place.address += at;
      piece.bytes = bytes;
      if (write.copy.empty()) {
        piece.source = static_cast<const std::byte*>(write.source) + at;
      } else {
        const auto first = write.copy.begin() + static_cast<std::ptrdiff_t>(at);
        piece.copy.assign(first, first + static_cast<std::ptrdiff_t>(bytes));
      }
      pieces.push_back(std::move(piece));
      at += bytes;
    }
    return pieces;
  }

  bool MayGo(const Operation& operation) {
    if (operation.follows != nullptr && *operation.follows != 0) return false;
    if (!operation.is_ordered()) return true;
    return epochs_.at({operation.from, operation.to}).begin()->first == operation.epoch;
  }

  /// Any that may go: there always is one, since the oldest epoch's writes may.
  std::size_t Choose() {
    std::size_t index = random_() % queue_.size();
    while (!MayGo(queue_[index])) index = (index + 1) % queue_.size();
    return index;
  }

  ofi::Regions::Found Find(const Operation& operation) {
    const auto found = regions_.find({operation.to, operation.place.key});
    if (found == regions_.end()) return {};
    const Region& region = found->second;
    const std::uint64_t offset = operation.place.address - region.address;
    if (offset > region.bytes || operation.bytes > region.bytes - offset) return {};
    return {region.start + offset, region.access};
  }

  Result<std::uint64_t> CarryOut(const Operation& operation) {
    const ofi::Regions::Found found = Find(operation);
    if (found.memory == nullptr) {
      return Error(ErrorCode::kInternal, "PE {} has registered no {} bytes at {:#x} with key {:#x}",
                   operation.to, operation.bytes, operation.place.address, operation.place.key);
    }
    switch (operation.what) {
      case Operation::What::kWrite:
        MORI_RETURN_IF_ERROR(found.Write(
            operation.copy.empty() ? operation.source : operation.copy.data(), operation.bytes));
        break;
      case Operation::What::kRead:
        MORI_RETURN_IF_ERROR(found.Read(operation.target, operation.bytes));
        break;
      case Operation::What::kAtomic:
        if (found.access != nullptr)
          return found.Atomic(operation.op, operation.width, operation.value, operation.expected);
        return ApplyTo(found.memory, operation.op, operation.width, operation.value,
                       operation.expected);
    }
    return std::uint64_t{0};
  }

  void Finish(Operation* operation, const Result<std::uint64_t>& outcome) {
    if (!operation->is_told) --open_[{operation->from, operation->to}];
    ++end(operation->to).arrivals;
    if (operation->is_ordered()) {
      auto& epochs = epochs_[{operation->from, operation->to}];
      if (--epochs[operation->epoch] == 0) epochs.erase(operation->epoch);
    }
    if (operation->piece_of != nullptr) --*operation->piece_of;
    if (operation->ticket != nullptr) {
      operation->ticket->is_done = true;
      operation->ticket->status = outcome.status();
      if (outcome.ok()) operation->ticket->found = *outcome;
    } else if (!outcome.ok() && !operation->is_told) {
      end(operation->from).failures.emplace(operation->to, outcome.status());
    }
    changed_.notify_all();
  }

  template <typename Which>
  void Drop(Which which, const Status& why) {
    std::vector<Operation> kept;
    std::vector<Operation> all = std::exchange(queue_, {});
    for (Operation& each : all) {
      if (which(each)) {
        Finish(&each, why);
      } else {
        kept.push_back(std::move(each));
      }
    }
    queue_ = std::move(kept);
  }

  std::size_t CountOf(int from, int to) {
    std::size_t count = 0;
    for (int pe = 0; pe < options_.n_pes; ++pe) {
      if (to == -1 || to == pe) count += open_[{from, pe}];
    }
    return count;
  }

  template <typename Condition>
  Status Wait(Lock* lock, int self, Condition condition) {
    const auto begin = std::chrono::steady_clock::now();
    while (!changed_.wait_for(*lock, kAskEvery, condition)) {
      const auto keeps_waiting = end(self).parts.keeps_waiting;
      lock->unlock();
      const auto so_far = std::chrono::duration_cast<std::chrono::milliseconds>(
          std::chrono::steady_clock::now() - begin);
      const Status verdict = keeps_waiting ? keeps_waiting(so_far) : Status();
      lock->lock();
      MORI_RETURN_IF_ERROR(verdict);
    }
    return Status();
  }

  const Options options_;
  std::mutex mutex_;  ///< all below
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::vector<End> ends_;
  std::map<std::pair<int, std::uint64_t>, Region> regions_;  ///< by PE and key
  std::vector<Operation> queue_;
  std::map<std::pair<int, int>, std::size_t> open_;  ///< operations not done, by both PEs
  std::map<std::pair<int, int>, std::map<std::uint64_t, std::size_t>> epochs_;  ///< of the ordered
  std::vector<Posted> posts_;
  bool is_held_ = false;
  bool is_stopped_ = false;
  std::thread thread_;  ///< last: it uses the rest
};

namespace {

using State = std::shared_ptr<MemoryNetwork::State>;

class MemoryRegistration final : public Registration {
 public:
  MemoryRegistration(State state, int self, RegionAccess* access, void* start, std::uint64_t bytes)
      : state_(std::move(state)),
        self_(self),
        place_(state_->Register(self, access, start, bytes)) {}
  ~MemoryRegistration() override { state_->Unregister(self_, place_.key); }
  RemotePlace place() const override { return place_; }

 private:
  State state_;
  int self_;
  RemotePlace place_;
};

class MemoryChannel final : public Channel {
 public:
  MemoryChannel(State state, int self) : state_(std::move(state)), self_(self) {}

  Status Put(int pe, RemotePlace to, const void* from, std::uint64_t bytes) override {
    state_->Note({Posted::Kind::kPut, self_, pe, to, bytes});
    return state_->TakeWrite(Copied(Write(pe, to, from, bytes)), std::nullopt);
  }
  Status PutNbi(int pe, RemotePlace to, const void* from, std::uint64_t bytes) override {
    state_->Note({Posted::Kind::kPut, self_, pe, to, bytes});
    return state_->TakeWrite(Write(pe, to, from, bytes), std::nullopt);
  }
  Status Get(int pe, void* to, RemotePlace from, std::uint64_t bytes) override {
    state_->Note({Posted::Kind::kGet, self_, pe, from, bytes});
    return state_->Await(Read(pe, to, from, bytes), nullptr);
  }
  Status GetNbi(int pe, void* to, RemotePlace from, std::uint64_t bytes) override {
    state_->Note({Posted::Kind::kGet, self_, pe, from, bytes});
    return state_->Take(Read(pe, to, from, bytes));
  }
  Status PutSignal(int pe, RemotePlace to, const void* from, std::uint64_t bytes, RemotePlace word,
                   std::uint64_t signal, SignalOp op) override {
    state_->Note({Posted::Kind::kPutSignal, self_, pe, to, bytes});
    const AtomicOp change = op == SignalOp::kAdd ? AtomicOp::kFetchAdd : AtomicOp::kSet;
    return state_->TakeWrite(Copied(Write(pe, to, from, bytes)),
                             Atomic(pe, word, change, 8, signal, 0));
  }
  Status Post(int pe, RemotePlace word, AtomicOp op, int width, std::uint64_t value) override {
    state_->Note({Posted::Kind::kPost, self_, pe, word, static_cast<std::uint64_t>(width)});
    return state_->Take(Atomic(pe, word, op, width, value, 0));
  }
  Status Tell(int pe, RemotePlace to, const std::uint64_t* words, std::uint64_t bytes) override {
    state_->Note({Posted::Kind::kTell, self_, pe, to, bytes});
    const std::uint64_t before = bytes - sizeof *words;
    Operation last = Atomic(pe, {to.address + before, to.key}, AtomicOp::kSet, sizeof *words,
                            words[bytes / sizeof *words - 1], 0);
    last.is_told = true;
    Operation first = Copied(Write(pe, to, words, before));
    first.is_told = true;
    return state_->TakeWrite(std::move(first), std::move(last));
  }
  Status Fetch(int pe, RemotePlace word, AtomicOp op, int width, std::uint64_t value,
               std::uint64_t expected, std::uint64_t* found) override {
    state_->Note({Posted::Kind::kFetch, self_, pe, word, static_cast<std::uint64_t>(width)});
    return state_->Await(Atomic(pe, word, op, width, value, expected), found);
  }
  std::uint64_t Arrivals() override { return state_->Arrivals(self_); }
  void AwaitArrival(std::uint64_t seen, std::chrono::nanoseconds limit) override {
    state_->AwaitArrival(self_, seen, limit);
  }
  Status Fence() override {
    state_->Note({Posted::Kind::kFence, self_, -1, {}, 0});
    state_->Fence(self_);
    return Status();
  }
  Status Quiet() override { return Quiet(-1); }
  Status Quiet(int pe) override {
    state_->Note({Posted::Kind::kQuiet, self_, pe, {}, 0});
    return state_->Quiet(self_, pe);
  }

 private:
  Operation To(int pe, RemotePlace place, std::uint64_t bytes, Operation::What what) const {
    Operation operation;
    operation.what = what;
    operation.from = self_;
    operation.to = pe;
    operation.place = place;
    operation.bytes = bytes;
    return operation;
  }
  Operation Write(int pe, RemotePlace to, const void* from, std::uint64_t bytes) const {
    Operation write = To(pe, to, bytes, Operation::What::kWrite);
    write.source = from;
    return write;
  }
  static Operation Copied(Operation write) {
    const auto* from = static_cast<const std::uint8_t*>(write.source);
    write.copy.assign(from, from + write.bytes);
    return write;
  }
  Operation Read(int pe, void* to, RemotePlace from, std::uint64_t bytes) const {
    Operation read = To(pe, from, bytes, Operation::What::kRead);
    read.target = to;
    return read;
  }
  Operation Atomic(int pe, RemotePlace word, AtomicOp op, int width, std::uint64_t value,
                   std::uint64_t expected) const {
    Operation atomic = To(pe, word, static_cast<std::uint64_t>(width), Operation::What::kAtomic);
    atomic.op = op;
    atomic.width = width;
    atomic.value = value;
    atomic.expected = expected;
    return atomic;
  }

  State state_;
  int self_;
};

class MemoryTransport final : public RemoteTransport {
 public:
  MemoryTransport(State state, RemoteParts parts)
      : state_(std::move(state)), self_(parts.self), channel_(state_, parts.self) {
    state_->Join(std::move(parts));
  }
  ~MemoryTransport() override { state_->Leave(self_); }

  std::string_view name() const override { return "memory"; }
  std::string Describe() const override { return "memory of this process"; }

  Bytes Address() const override {
    return ByteWriter().Int(kMagic).Int(state_->id()).Int(self_).Take();
  }
  Status Connect(std::span<const Bytes> addresses, const Deadline&) override {
    if (addresses.size() != static_cast<std::size_t>(state_->options().n_pes)) {
      return Error(ErrorCode::kInvalidArgument, "{} addresses, for {} PEs", addresses.size(),
                   state_->options().n_pes);
    }
    for (std::size_t pe = 0; pe < addresses.size(); ++pe) {
      if (addresses[pe].empty()) continue;
      ByteReader reader(addresses[pe]);
      const bool is_ours = reader.Int<std::uint32_t>() == kMagic &&
                           reader.Int<std::uint64_t>() == state_->id() &&
                           reader.Int<int>() == static_cast<int>(pe) && reader.AtEnd();
      if (!is_ours) {
        return Error(ErrorCode::kInvalidArgument, "PE {} has no address of this memory: {} bytes",
                     pe, addresses[pe].size());
      }
    }
    return Status();
  }

  Result<std::unique_ptr<Registration>> Register(void* start, std::uint64_t bytes) override {
    return RegisterThrough(nullptr, start, bytes);
  }
  Result<std::unique_ptr<Registration>> RegisterThrough(RegionAccess* access, void* start,
                                                        std::uint64_t bytes) override {
    if (start == nullptr || bytes == 0)
      return Error(ErrorCode::kInvalidArgument, "register {} bytes at {}", bytes, start);
    return std::unique_ptr<Registration>(
        std::make_unique<MemoryRegistration>(state_, self_, access, start, bytes));
  }
  Channel& channel() override { return channel_; }

 private:
  State state_;
  int self_;
  MemoryChannel channel_;
};

}  // namespace

MemoryNetwork::MemoryNetwork(const Options& options) : state_(std::make_shared<State>(options)) {}
MemoryNetwork::~MemoryNetwork() = default;

std::unique_ptr<RemoteTransport> MemoryNetwork::Join(RemoteParts parts) {
  return std::make_unique<MemoryTransport>(state_, std::move(parts));
}
void MemoryNetwork::Lose(int pe, const std::string& why) { state_->Lose(pe, why); }
void MemoryNetwork::Hold() { state_->SetHeld(true); }
void MemoryNetwork::Release() { state_->SetHeld(false); }
std::vector<Posted> MemoryNetwork::TakePosts() { return state_->TakePosts(); }

}  // namespace mori::shmem::testing
