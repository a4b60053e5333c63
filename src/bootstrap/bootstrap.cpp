#include "bootstrap/bootstrap.hpp"

#include <algorithm>

#include "bootstrap/frame.hpp"
#include "bootstrap/mailbox.hpp"
#include "bootstrap/tree.hpp"

namespace mori::shmem {
namespace {

enum class Kind : std::uint8_t { kAllGather = 1, kCombine = 2, kAllToAll = 3 };

std::string_view NameOf(Kind kind) {
  switch (kind) {
    case Kind::kAllGather: return "an all-gather";
    case Kind::kCombine: return "a combination";
    case Kind::kAllToAll: return "an all-to-all";
  }
  return "an unknown call";
}

/// Of a message: what is put around it on its way takes the rest of a frame.
constexpr std::size_t kMaxMessageBytes = kMaxFrameBytes - 64;

Status CheckLength(std::size_t bytes) {
  if (bytes <= kMaxMessageBytes) return Status();
  return Error(ErrorCode::kInvalidArgument, "the messages of an exchange are {} bytes, {} at most",
               bytes, kMaxMessageBytes);
}

Result<std::vector<Bytes>> ReadTable(ByteView table, int size) {
  std::vector<Bytes> messages(static_cast<std::size_t>(size));
  std::vector<bool> there(messages.size());
  ByteReader reader(table);
  bool is_whole = true;
  for (int i = 0; i < size && is_whole; ++i) {
    const auto rank = reader.Int<std::uint32_t>();
    const ByteView message = reader.Block();
    is_whole = reader.ok() && rank < messages.size() && !there[rank];
    if (!is_whole) break;
    there[rank] = true;
    messages[rank].assign(message.begin(), message.end());
  }
  if (is_whole && reader.AtEnd()) return messages;
  return Error(ErrorCode::kInternal, "an exchange of {} ranks came back damaged", size);
}

}  // namespace

std::string ListRanks(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < kMost; ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  return ranks.size() > kMost ? text + ", …" : text;
}

Status RanksDidNotCome(const std::vector<int>& missing, int size, const Deadline& deadline) {
  return Error(ErrorCode::kTimeout, "{} of {} ranks did not come within {:.3g} s: rank{} {}",
               missing.size(), size, deadline.ElapsedSeconds(), missing.size() == 1 ? "" : "s",
               ListRanks(missing));
}

/// Who makes a call together, as this rank sees it. Places are ranks, or those in the group.
class Bootstrap::Members {
 public:
  Channel channel;
  int self = 0;                                   ///< place
  int count = 1;                                  ///< places
  Place place;                                    ///< in ranks
  std::shared_ptr<const std::vector<int>> ranks;  ///< by place; null: all
  /// The child, as a rank, on whose side a place lies; nothing for this place and others.
  std::function<std::optional<int>(int)> child_towards;
};

/// One call that this rank makes together with others. A message of it says which call it belongs
/// to: kind (1 byte), sequence (4 bytes).
class Bootstrap::Call {
 public:
  Call(Bootstrap* end, Kind kind, const Members& members, const WaitLimit& limit)
      : end_(end),
        kind_(kind),
        count_(members.count),
        place_(members.place),
        limit_(limit),
        round_{members.channel, end->mailbox_->Enter(members.channel), members.ranks} {
    end_->mailbox_->StartWaiting(&round_);
  }
  ~Call() { end_->mailbox_->EndWaiting(&round_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const Place& place() const { return place_; }

  void Tell(int to, ByteView message) {
    end_->Post(to, round_.channel,
               ByteWriter().Int(kind_).Int(round_.sequence).Raw(message).Take());
  }

  Result<Bytes> Hear(int from) {
    MORI_ASSIGN_OR_RETURN(std::optional<Bytes> message,
                          end_->mailbox_->Take(from, round_.channel, limit_));
    if (!message) return NotInTime();
    ByteReader reader(*message);
    const auto kind = reader.Int<Kind>();
    const auto sequence = reader.Int<std::uint32_t>();
    if (!reader.ok() || sequence != round_.sequence) {
      return Error(ErrorCode::kInternal, "rank {} is at exchange {}, rank {} at {}", from, sequence,
                   end_->rank(), round_.sequence);
    }
    if (kind != kind_) {
      return Error(ErrorCode::kMismatch, "rank {} makes {} where rank {} makes {}", from,
                   NameOf(kind), end_->rank(), NameOf(kind_));
    }
    message->erase(message->begin(), message->end() - static_cast<long>(reader.remaining()));
    return std::move(*message);
  }

  /// Up the tree `mine` and what the children send, put together by `add`; down again what the root
  /// has. @return that
  template <typename Add>
  Result<Bytes> UpAndDown(Bytes mine, Add add) {
    for (const int child : place_.children) {
      MORI_ASSIGN_OR_RETURN(const Bytes theirs, Hear(child));
      add(&mine, theirs);
      MORI_RETURN_IF_ERROR(CheckLength(mine.size()));
    }
    if (place_.parent) {
      Tell(*place_.parent, mine);
      MORI_ASSIGN_OR_RETURN(mine, Hear(*place_.parent));
    }
    for (const int child : place_.children) Tell(child, mine);
    return mine;
  }

 private:
  Status NotInTime() {
    const Deadline& deadline = limit_.deadline;
    const auto missing = end_->FindMissingOf(round_);
    MORI_RETURN_IF_ERROR(end_->Health());
    if (missing && !missing->empty()) return RanksDidNotCome(*missing, count_, deadline);
    if (missing) {
      return Error(ErrorCode::kTimeout, "the last of {} ranks came too late: not within {:.3g} s",
                   count_, deadline.ElapsedSeconds());
    }
    return Error(ErrorCode::kTimeout,
                 "an exchange of {} ranks was not complete within {:.3g} s, and rank {} does not "
                 "say who is missing",
                 count_, deadline.ElapsedSeconds(), place_.parent.value_or(end_->rank()));
  }

  Bootstrap* const end_;
  const Kind kind_;
  const int count_;
  const Place& place_;
  const WaitLimit& limit_;
  const Round round_;
};

Bootstrap::Elsewhere::Elsewhere(Bootstrap* end)
    : mailbox_(end->mailbox_.get()),
      round_{Channel{Channel::Use::kElsewhere, 0},
             mailbox_->Enter(Channel{Channel::Use::kElsewhere, 0}), nullptr} {
  mailbox_->StartWaiting(&round_);
}
Bootstrap::Elsewhere::~Elsewhere() { mailbox_->EndWaiting(&round_); }

Bootstrap::Bootstrap(int rank, int size)
    : rank_(rank), size_(size), mailbox_(std::make_shared<Mailbox>()) {}

Bootstrap::~Bootstrap() = default;

Status Bootstrap::Health() const { return mailbox_->Health(); }

template <typename Body>
auto Bootstrap::InOrder(Body body) -> decltype(body()) {
  MORI_RETURN_IF_ERROR(Health());
  MORI_RETURN_IF_ERROR(failed_);
  auto result = body();
  failed_ = result.status();
  return result;
}

Bootstrap::Members Bootstrap::Everyone() const {
  return {Channel{}, rank_, size_, place(), nullptr, [this](int to) { return ChildTowards(to); }};
}

Result<Bootstrap::Members> Bootstrap::MembersOf(const RankGroup& group) const {
  const std::vector<int>& ranks = group.ranks;
  const auto self = std::ranges::find(ranks, rank_);
  if (self == ranks.end()) {
    return Error(ErrorCode::kInvalidArgument, "rank {} is not among the ranks {} of a group", rank_,
                 ListRanks(ranks));
  }
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  const bool is_in_range = sorted.front() >= 0 && sorted.back() < size_;
  if (!is_in_range || std::ranges::adjacent_find(sorted) != sorted.end()) {
    return Error(ErrorCode::kInvalidArgument,
                 "the ranks {} are no group of a world of {}: each is in it once, from 0 to {}",
                 ListRanks(ranks), size_, size_ - 1);
  }
  Members members;
  members.channel = {Channel::Use::kGroup, group.tag};
  members.self = static_cast<int>(self - ranks.begin());
  members.count = static_cast<int>(ranks.size());
  members.ranks = std::make_shared<const std::vector<int>>(ranks);
  const auto rank_at = [all = members.ranks](int at) {
    return (*all)[static_cast<std::size_t>(at)];
  };
  if (members.self > 0) members.place.parent = rank_at(HeapParent(members.self));
  for (const int child : HeapChildren(members.self, members.count))
    members.place.children.push_back(rank_at(child));
  members.child_towards = [rank_at, self = members.self](int to) -> std::optional<int> {
    while (to > self && HeapParent(to) != self) to = HeapParent(to);
    return to > self ? std::optional(rank_at(to)) : std::nullopt;
  };
  return members;
}

Result<std::vector<Bytes>> Bootstrap::AllGather(const Members& members, ByteView mine,
                                                const WaitLimit& limit) {
  MORI_RETURN_IF_ERROR(CheckLength(mine.size()));
  Call call(this, Kind::kAllGather, members, limit);
  Bytes own = ByteWriter().Int(static_cast<std::uint32_t>(members.self)).Block(mine).Take();
  MORI_ASSIGN_OR_RETURN(const Bytes table,
                        call.UpAndDown(std::move(own), [](Bytes* all, ByteView theirs) {
                          all->insert(all->end(), theirs.begin(), theirs.end());
                        }));
  return ReadTable(table, members.count);
}

Result<Bytes> Bootstrap::Combine(const Members& members, ByteView mine, const Merge& merge,
                                 const WaitLimit& limit) {
  MORI_RETURN_IF_ERROR(CheckLength(mine.size()));
  Call call(this, Kind::kCombine, members, limit);
  return call.UpAndDown(Bytes(mine.begin(), mine.end()),
                        [&](Bytes* all, ByteView theirs) { *all = merge(*all, theirs); });
}

namespace {

/// Messages on their way from place to place: from, to, length and bytes of each.
class Bundle {
 public:
  void Add(std::uint32_t from, std::uint32_t to, ByteView message) {
    writer_.Int(from).Int(to).Block(message);
  }
  std::size_t size() const { return writer_.bytes().size(); }
  Bytes Take() { return writer_.Take(); }

  /// Calls `handle` with each message of a bundle. @return kInternal for bytes that are none
  template <typename Handle>
  static Status ForEach(ByteView bundle, int places, Handle handle) {
    const auto limit = static_cast<std::uint32_t>(places);
    ByteReader reader(bundle);
    while (!reader.AtEnd()) {
      const auto from = reader.Int<std::uint32_t>();
      const auto to = reader.Int<std::uint32_t>();
      const ByteView message = reader.Block();
      if (!reader.ok() || from >= limit || to >= limit)
        return Error(ErrorCode::kInternal, "an exchange of {} ranks came back damaged", places);
      handle(from, to, message);
    }
    return Status();
  }

 private:
  ByteWriter writer_;
};

}  // namespace

Result<std::vector<Bytes>> Bootstrap::AllToAll(const Members& members,
                                               std::span<const Bytes> messages,
                                               const WaitLimit& limit) {
  if (messages.size() != static_cast<std::size_t>(members.count)) {
    return Error(ErrorCode::kInvalidArgument, "{} messages for {} ranks", messages.size(),
                 members.count);
  }
  Call call(this, Kind::kAllToAll, members, limit);
  std::vector<std::optional<Bytes>> received(messages.size());
  Bundle up;
  std::map<int, Bundle> down;  // by child
  bool is_damaged = false;
  const auto sort = [&](std::uint32_t from, std::uint32_t to, ByteView message) {
    const int place = static_cast<int>(to);
    if (place == members.self) {
      is_damaged = is_damaged || received[from].has_value();
      received[from].emplace(message.begin(), message.end());
    } else if (const auto child = members.child_towards(place)) {
      down[*child].Add(from, to, message);
    } else {
      up.Add(from, to, message);
    }
  };
  for (std::size_t to = 0; to < messages.size(); ++to) {
    MORI_RETURN_IF_ERROR(CheckLength(messages[to].size()));
    sort(static_cast<std::uint32_t>(members.self), static_cast<std::uint32_t>(to), messages[to]);
  }
  const Place& place = members.place;
  for (const int child : place.children) {
    MORI_ASSIGN_OR_RETURN(const Bytes bundle, call.Hear(child));
    MORI_RETURN_IF_ERROR(Bundle::ForEach(bundle, members.count, sort));
  }
  if (place.parent) {
    MORI_RETURN_IF_ERROR(CheckLength(up.size()));
    call.Tell(*place.parent, up.Take());
    up = Bundle();
    MORI_ASSIGN_OR_RETURN(const Bytes bundle, call.Hear(*place.parent));
    MORI_RETURN_IF_ERROR(Bundle::ForEach(bundle, members.count, sort));
  }
  for (const int child : place.children) {
    MORI_RETURN_IF_ERROR(CheckLength(down[child].size()));
    call.Tell(child, down[child].Take());
  }
  std::vector<Bytes> all;
  for (auto& message : received) {
    is_damaged = is_damaged || !message.has_value();
    all.push_back(std::move(message).value_or(Bytes()));
  }
  if (is_damaged || up.size() > 0) {
    return Error(ErrorCode::kInternal, "an exchange of {} ranks came back damaged", members.count);
  }
  return all;
}

Result<std::vector<Bytes>> Bootstrap::AllGather(ByteView mine, const WaitLimit& limit) {
  return InOrder([&] { return AllGather(Everyone(), mine, limit); });
}

Result<Bytes> Bootstrap::Combine(ByteView mine, const Merge& merge, const WaitLimit& limit) {
  return InOrder([&] { return Combine(Everyone(), mine, merge, limit); });
}

Result<std::vector<Bytes>> Bootstrap::AllToAll(std::span<const Bytes> messages,
                                               const WaitLimit& limit) {
  return InOrder([&] { return AllToAll(Everyone(), messages, limit); });
}

Status Bootstrap::Barrier(const WaitLimit& limit) {
  return Combine(
             {}, [](ByteView, ByteView) { return Bytes(); }, limit)
      .status();
}

Result<std::vector<Bytes>> Bootstrap::AllGather(const RankGroup& group, ByteView mine,
                                                const WaitLimit& limit) {
  MORI_RETURN_IF_ERROR(Health());
  MORI_ASSIGN_OR_RETURN(const Members members, MembersOf(group));
  return AllGather(members, mine, limit);
}

Result<Bytes> Bootstrap::Combine(const RankGroup& group, ByteView mine, const Merge& merge,
                                 const WaitLimit& limit) {
  MORI_RETURN_IF_ERROR(Health());
  MORI_ASSIGN_OR_RETURN(const Members members, MembersOf(group));
  return Combine(members, mine, merge, limit);
}

Result<std::vector<Bytes>> Bootstrap::AllToAll(const RankGroup& group,
                                               std::span<const Bytes> messages,
                                               const WaitLimit& limit) {
  MORI_RETURN_IF_ERROR(Health());
  MORI_ASSIGN_OR_RETURN(const Members members, MembersOf(group));
  return AllToAll(members, messages, limit);
}

Status Bootstrap::Barrier(const RankGroup& group, const WaitLimit& limit) {
  return Combine(
             group, {}, [](ByteView, ByteView) { return Bytes(); }, limit)
      .status();
}

Status Bootstrap::Send(int to, std::uint64_t tag, ByteView message) {
  if (to < 0 || to >= size_)
    return Error(ErrorCode::kInvalidArgument, "there is no rank {} among {}", to, size_);
  MORI_RETURN_IF_ERROR(CheckLength(message.size()));
  MORI_RETURN_IF_ERROR(Health());
  Post(to, {Channel::Use::kPair, tag}, Bytes(message.begin(), message.end()));
  return Status();
}

Result<Bytes> Bootstrap::Receive(int from, std::uint64_t tag, const WaitLimit& limit) {
  if (from < 0 || from >= size_)
    return Error(ErrorCode::kInvalidArgument, "there is no rank {} among {}", from, size_);
  MORI_ASSIGN_OR_RETURN(std::optional<Bytes> message,
                        mailbox_->Take(from, {Channel::Use::kPair, tag}, limit));
  if (message) return std::move(*message);
  return Error(ErrorCode::kTimeout, "rank {} sent no message with tag {:#x} within {:.3g} s", from,
               tag, limit.deadline.ElapsedSeconds());
}

std::optional<std::vector<int>> Bootstrap::FindMissingOf(const Round& round) {
  auto missing = FindMissing(round);
  if (missing && round.ranks) {
    std::erase_if(*missing, [&](int rank) {
      return std::ranges::find(*round.ranks, rank) == round.ranks->end();
    });
  }
  return missing;
}

std::vector<int> Bootstrap::Missing() {
  std::vector<int> ranks;
  for (const Round& round : mailbox_->Waiting()) {
    const auto missing = FindMissingOf(round);
    if (missing) ranks.insert(ranks.end(), missing->begin(), missing->end());
  }
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace mori::shmem
