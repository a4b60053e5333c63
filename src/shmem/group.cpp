#include "shmem/group.hpp"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "bootstrap/rendezvous_messages.hpp"

namespace mori::shmem {
namespace {

std::string DescribeProposal(const Proposal& proposal) {
  switch (proposal.call) {
    case Proposal::Call::kBarrier: return "barrier_all()";
    case Proposal::Call::kMalloc:
      return fmt::format("an allocation of {} bytes, alignment {}, flags {:#x}", proposal.first,
                         proposal.second, proposal.third);
    case Proposal::Call::kOutcome: return "the end of an exchange of memory";
    case Proposal::Call::kFinalize: return "finalize()";
    case Proposal::Call::kFree:
      if (proposal.third == kFreeOfNull) return "a free of null";
      return proposal.second == 0
                 ? "a free of an address outside its heap"
                 : fmt::format("a free of heap offset {:#x}{}", proposal.first,
                               proposal.third == kFreeInUse ? ", which its streams still use" : "");
  }
  return "another call";
}

/// What a PE proposes.
struct Proposed {
  int pe = 0;
  Proposal proposal;
};

/// What some PEs propose, in as much as all need to know of it.
struct Opinion {
  Proposed lowest;                ///< of the lowest of these PEs
  std::optional<Proposed> other;  ///< of the lowest that proposes something else
  bool has_news = false;          ///< one of these PEs has
};

void Write(ByteWriter* writer, const Proposed& one) {
  writer->Int(static_cast<std::int32_t>(one.pe))
      .Int(static_cast<std::uint32_t>(one.proposal.call))
      .Int(one.proposal.first)
      .Int(one.proposal.second)
      .Int(one.proposal.third);
}

Proposed ReadProposed(ByteReader* reader) {
  Proposed one;
  one.pe = reader->Int<std::int32_t>();
  one.proposal.call = static_cast<Proposal::Call>(reader->Int<std::uint32_t>());
  one.proposal.first = reader->Int<std::uint64_t>();
  one.proposal.second = reader->Int<std::uint64_t>();
  one.proposal.third = reader->Int<std::uint64_t>();
  return one;
}

Bytes Encode(const Opinion& opinion) {
  ByteWriter writer;
  writer.Int(std::uint8_t{opinion.has_news}).Int(std::uint8_t{opinion.other.has_value()});
  Write(&writer, opinion.lowest);
  if (opinion.other) Write(&writer, *opinion.other);
  return writer.Take();
}

/// Nothing for bytes that are no opinion of PEs of a world of `n_pes`.
std::optional<Opinion> Decode(ByteView bytes, int n_pes) {
  ByteReader reader(bytes);
  Opinion opinion;
  opinion.has_news = reader.Int<std::uint8_t>() != 0;
  const bool has_other = reader.Int<std::uint8_t>() != 0;
  opinion.lowest = ReadProposed(&reader);
  if (has_other) opinion.other = ReadProposed(&reader);
  const auto is_pe = [n_pes](const Proposed& one) { return one.pe >= 0 && one.pe < n_pes; };
  const bool is_good =
      reader.AtEnd() && is_pe(opinion.lowest) && (!opinion.other || is_pe(*opinion.other));
  return is_good ? std::optional(opinion) : std::nullopt;
}

/// Neither order nor grouping matters: of all PEs that differ from the lowest, the lowest is kept.
Opinion MergeOpinions(const Opinion& a, const Opinion& b) {
  const bool a_is_lower = a.lowest.pe < b.lowest.pe;
  Opinion both = a_is_lower ? a : b;
  const Opinion& higher = a_is_lower ? b : a;
  both.has_news = a.has_news || b.has_news;
  const auto consider = [&both](const Proposed& one) {
    if (one.proposal == both.lowest.proposal) return;
    if (!both.other || one.pe < both.other->pe) both.other = one;
  };
  consider(higher.lowest);
  if (higher.other) consider(*higher.other);
  return both;
}

}  // namespace

std::string PeList(const std::vector<int>& pes) { return fmt::format("{}", fmt::join(pes, ",")); }

Status Disagreement(const char* call, int first_pe, const Proposal& first, int other_pe,
                    const Proposal& other) {
  return Error(ErrorCode::kMismatch,
               "PEs disagree in a collective call, {} here: PE {} made {}, PE {} made {}", call,
               first_pe, DescribeProposal(first), other_pe, DescribeProposal(other));
}

Status Group::WhyEnded(const Status& ended) const {
  if (ended.code() != ErrorCode::kPeerLost) return ended;
  const Status lost = parts_.peers->Health();
  if (lost.ok()) return ended;
  const std::vector<int> late = parts_.peers->Late();
  if (late.empty()) return lost;
  return Error(lost.code(), "{}, while this PE waited for PE{} {}", lost.message(),
               late.size() == 1 ? "" : "s", PeList(late));
}

Budget Group::BudgetOfCall() const {
  if (!init_ends_) return parts_.budget;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(init_ends_->end() - Deadline::Clock::now());
  return {std::max(left, std::chrono::milliseconds(0)), "MORI_BOOTSTRAP_TIMEOUT"};
}

Status Group::Meet(const Proposal& proposal, const char* call, bool* news, const Budget& budget) {
  const Status met = parts_.topology->n_nodes() == 1
                         ? MeetOnNode(proposal, call, news, budget)
                         : MeetAcrossNodes(proposal, call, news, budget);
  // Who gives up is lost to those that come later, and wait for it. Of a loss they hear anyway.
  const bool is_known =
      met.ok() || met.code() == ErrorCode::kMismatch || met.code() == ErrorCode::kPeerLost;
  if (!is_known) parts_.bootstrap->Abort(met);
  return met;
}

Status Group::MeetOnNode(const Proposal& proposal, const char* call, bool* news,
                         const Budget& budget) {
  CallWatch watch(*parts_.peers, call, budget.time, budget.variable);
  std::optional<Board::Dispute> dispute;
  const Status ended = parts_.board->Agree(proposal, &dispute, news, &watch);
  if (!ended.ok()) return WhyEnded(ended);
  if (!dispute) return Status();
  const std::vector<int>& pes = parts_.topology->PesAround(parts_.pe);
  return Disagreement(call, pes[0], dispute->first, pes[static_cast<std::size_t>(dispute->index)],
                      dispute->differing);
}

Status Group::MeetAcrossNodes(const Proposal& proposal, const char* call, bool* news,
                              const Budget& budget) {
  CallWatch watch(*parts_.peers, call, budget.time, budget.variable);
  if (leaders_ == nullptr) return Compare(proposal, call, news, &watch);
  Joint joint{true, news != nullptr && *news};
  const Status ended = MeetOverNetwork(proposal, &joint, &watch);
  if (!ended.ok()) return WhyEnded(ended);
  // Nobody leaves the network before all have heard what was told them: after a finalize they meet
  // once more, another way.
  const bool is_last = proposal.call == Proposal::Call::kFinalize;
  if (!joint.is_same || is_last) return Compare(proposal, call, news, &watch);
  if (news != nullptr) *news = joint.has_news;
  return Status();
}

Status Group::MeetOverNetwork(const Proposal& proposal, Joint* joint, WaitWatch* watch) {
  const Bootstrap::Elsewhere came(parts_.bootstrap);
  MORI_RETURN_IF_ERROR(parts_.board->Join(proposal, joint, watch));
  if (parts_.topology->IndexOf(parts_.pe) != 0) return Status();
  MORI_RETURN_IF_ERROR(leaders_->Meet(proposal, joint, watch));
  parts_.board->Announce(*joint);
  return Status();
}

Status Group::Compare(const Proposal& proposal, const char* call, bool* news, WaitWatch* watch) {
  const int n_pes = parts_.topology->n_pes();
  const Opinion mine{{parts_.pe, proposal}, std::nullopt, news != nullptr && *news};
  const auto merge = [n_pes](ByteView a, ByteView b) {
    const auto one = Decode(a, n_pes);
    const auto other = Decode(b, n_pes);
    return one && other ? Encode(MergeOpinions(*one, *other)) : Bytes();
  };
  // The messages order what PEs on one node did by load and store, too; they say so to nobody but
  // the kernels of the hosts.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto combined = parts_.bootstrap->Combine(Encode(mine), merge, WaitLimit(watch));
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!combined.ok()) return WhyEnded(combined.status());
  const auto all = Decode(*combined, n_pes);
  if (!all)
    return Error(ErrorCode::kInternal, "what all PEs propose in {} came back damaged", call);
  if (all->other) {
    return Disagreement(call, all->lowest.pe, all->lowest.proposal, all->other->pe,
                        all->other->proposal);
  }
  if (news != nullptr) *news = all->has_news;
  return Status();
}

Result<std::vector<Bytes>> Group::AllGather(ByteView mine) {
  // All PEs are in this call already: that one of them stops here is no reason to wait for ever.
  Budget budget = BudgetOfCall();
  if (!budget.time) budget = {parts_.exchange_budget, "MORI_BOOTSTRAP_TIMEOUT"};
  CallWatch watch(*parts_.peers, "an exchange of messages", budget.time, budget.variable,
                  parts_.bootstrap);
  auto all = parts_.bootstrap->AllGather(mine, WaitLimit(&watch));
  if (all.status().code() == ErrorCode::kTimeout) parts_.bootstrap->Abort(all.status());
  return all;
}

Status Group::AgreeOnOutcome(const Status& mine) {
  // Who did not see it go well proposes something else than success: a dispute, where one did.
  const Proposal proposal{Proposal::Call::kOutcome, mine.ok() ? 1u : 0u, 0, 0};
  const Status met = Meet(proposal, "the end of an exchange of memory");
  if (!met.ok() && met.code() != ErrorCode::kMismatch) return met;
  if (mine.ok() && met.ok()) return Status();
  MORI_ASSIGN_OR_RETURN(const auto outcomes, AllGather(mine.ok() ? Bytes() : EncodeStatus(mine)));
  // Who failed by itself, before who failed because another did (kMismatch).
  for (const bool by_itself : {true, false}) {
    for (int pe = 0; pe < parts_.topology->n_pes(); ++pe) {
      const Bytes& outcome = outcomes[static_cast<std::size_t>(pe)];
      if (outcome.empty()) continue;
      const Status theirs = DecodeStatus(outcome);
      if (by_itself && theirs.code() == ErrorCode::kMismatch) continue;
      if (pe == parts_.pe) return mine;
      return Error(theirs.code(), "{}: {}", parts_.peers->Names({pe}), theirs.message());
    }
  }
  return Error(ErrorCode::kInternal, "PEs disagree on the outcome of a step that went well on all");
}

}  // namespace mori::shmem
