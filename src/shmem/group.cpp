#include "shmem/group.hpp"

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

Bytes Encode(const Proposal& proposal, bool has_news) {
  return ByteWriter()
      .Int(static_cast<std::uint32_t>(proposal.call))
      .Int(proposal.first)
      .Int(proposal.second)
      .Int(proposal.third)
      .Int(std::uint8_t{has_news})
      .Take();
}

struct Proposed {
  Proposal proposal;
  bool has_news;
};

Result<Proposed> Decode(int pe, ByteView bytes) {
  ByteReader reader(bytes);
  Proposed one;
  one.proposal.call = static_cast<Proposal::Call>(reader.Int<std::uint32_t>());
  one.proposal.first = reader.Int<std::uint64_t>();
  one.proposal.second = reader.Int<std::uint64_t>();
  one.proposal.third = reader.Int<std::uint64_t>();
  one.has_news = reader.Int<std::uint8_t>() != 0;
  if (!reader.AtEnd())
    return Error(ErrorCode::kMismatch, "what PE {} proposes in a collective call is malformed", pe);
  return one;
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

Status Group::Meet(const Proposal& proposal, const char* call, bool* news, const Budget& budget) {
  const Status met = parts_.topology->n_nodes() == 1
                         ? MeetOnNode(proposal, call, news, budget)
                         : MeetAcrossNodes(proposal, call, news, budget);
  // Who gives up is lost to those that come later, and wait for it.
  if (met.code() == ErrorCode::kTimeout) parts_.bootstrap->Abort(met);
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
  const auto all =
      parts_.bootstrap->AllGather(Encode(proposal, news != nullptr && *news),
                                  budget.time ? Deadline::After(*budget.time) : Deadline::Never());
  if (!all.ok()) return WhyEnded(all.status());
  MORI_ASSIGN_OR_RETURN(const Proposed first, Decode(0, (*all)[0]));
  bool any_news = false;
  for (int pe = 0; pe < parts_.topology->n_pes(); ++pe) {
    MORI_ASSIGN_OR_RETURN(const Proposed one, Decode(pe, (*all)[static_cast<std::size_t>(pe)]));
    if (one.proposal != first.proposal)
      return Disagreement(call, 0, first.proposal, pe, one.proposal);
    any_news = any_news || one.has_news;
  }
  if (news != nullptr) *news = any_news;
  return Status();
}

Result<std::vector<Bytes>> Group::AllGather(ByteView mine) {
  return parts_.bootstrap->AllGather(mine, Deadline::After(parts_.exchange_budget));
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
