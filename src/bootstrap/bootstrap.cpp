#include "bootstrap/bootstrap.hpp"

#include <algorithm>

#include "bootstrap/frame.hpp"
#include "bootstrap/mailbox.hpp"

namespace mori::shmem {
namespace {

enum class Kind : std::uint8_t { kAllGather = 1, kCombine = 2 };

std::string_view NameOf(Kind kind) {
  switch (kind) {
    case Kind::kAllGather: return "an all-gather";
    case Kind::kCombine: return "a combination";
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

/// One call that this rank makes together with others. A message of it says which call it belongs
/// to: kind (1 byte), sequence (4 bytes).
class Bootstrap::Call {
 public:
  Call(Bootstrap* end, Kind kind, const Channel& channel, const Place& place,
       const WaitLimit& limit)
      : end_(end),
        kind_(kind),
        place_(place),
        limit_(limit),
        round_{channel, end->mailbox_->Enter(channel)} {
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
    const auto missing = end_->FindMissing(round_);
    MORI_RETURN_IF_ERROR(end_->Health());
    if (missing && !missing->empty()) return RanksDidNotCome(*missing, end_->size(), deadline);
    if (missing) {
      return Error(ErrorCode::kTimeout, "the last of {} ranks came too late: not within {:.3g} s",
                   end_->size(), deadline.ElapsedSeconds());
    }
    return Error(ErrorCode::kTimeout,
                 "an exchange of {} ranks was not complete within {:.3g} s, and rank {} does not "
                 "say who is missing",
                 end_->size(), deadline.ElapsedSeconds(), place_.parent.value_or(end_->rank()));
  }

  Bootstrap* const end_;
  const Kind kind_;
  const Place& place_;
  const WaitLimit& limit_;
  const Round round_;
};

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

Result<std::vector<Bytes>> Bootstrap::AllGather(ByteView mine, const WaitLimit& limit) {
  return InOrder([&]() -> Result<std::vector<Bytes>> {
    MORI_RETURN_IF_ERROR(CheckLength(mine.size()));
    Call call(this, Kind::kAllGather, Channel{}, place(), limit);
    Bytes own = ByteWriter().Int(static_cast<std::uint32_t>(rank_)).Block(mine).Take();
    MORI_ASSIGN_OR_RETURN(const Bytes table,
                          call.UpAndDown(std::move(own), [](Bytes* all, ByteView theirs) {
                            all->insert(all->end(), theirs.begin(), theirs.end());
                          }));
    return ReadTable(table, size_);
  });
}

Result<Bytes> Bootstrap::Combine(ByteView mine, const Merge& merge, const WaitLimit& limit) {
  return InOrder([&]() -> Result<Bytes> {
    MORI_RETURN_IF_ERROR(CheckLength(mine.size()));
    Call call(this, Kind::kCombine, Channel{}, place(), limit);
    return call.UpAndDown(Bytes(mine.begin(), mine.end()),
                          [&](Bytes* all, ByteView theirs) { *all = merge(*all, theirs); });
  });
}

Status Bootstrap::Barrier(const WaitLimit& limit) {
  return Combine(
             {}, [](ByteView, ByteView) { return Bytes(); }, limit)
      .status();
}

std::vector<int> Bootstrap::Missing() {
  std::vector<int> ranks;
  for (const Round& round : mailbox_->Waiting()) {
    const auto missing = FindMissing(round);
    if (missing) ranks.insert(ranks.end(), missing->begin(), missing->end());
  }
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace mori::shmem
