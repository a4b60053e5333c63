// What goes into a collective, and whether the right data came out.
#pragma once

#include <string>

#include "stage.cuh"

namespace mori::bench {

/// Of `bytes` of, or to, each PE. Of a broadcast PE 0 is the root.
template <Collective C>
class CollectiveData {
 public:
  CollectiveData(const Side& side, u64 bytes, int n_pes)
      : side_(side), bytes_(bytes), n_pes_(static_cast<u32>(n_pes)) {}

  /// What a PE has at the end.
  u64 dest_bytes() const {
    return C == Collective::kFCollect || C == Collective::kAllToAll ? bytes_ * n_pes_ : bytes_;
  }

  void Prepare(u32 salt) const {
    side_.Clear(side_.dest, dest_bytes());
    Fill(salt);
  }
  /// Other data in the source. Salts are `n_pes` apart at least.
  void Fill(u32 salt) const {
    if (C == Collective::kSumReduce) {
      FillNumbers<<<1024, 256, 0, side_.stream>>>(reinterpret_cast<float*>(side_.source),
                                                  bytes_ / sizeof(float), salt + me());
      side_.Finish();
    } else {
      const u64 bytes = C == Collective::kAllToAll ? bytes_ * n_pes_ : bytes_;
      side_.FillWith(side_.source, bytes, salt + me());
    }
  }
  void RequireRight(const std::string& figure, u32 salt) const {
    const auto* found = reinterpret_cast<const u32*>(side_.dest);
    side_.RequireNoneWrong(figure, [&](u64* wrong) {
      // Of a broadcast, what the root itself has is not compared.
      if (C != Collective::kBroadcast || me() != 0) {
        CountWrongOf<C><<<1024, 256, 0, side_.stream>>>(found, bytes_ / sizeof(u32), salt, me(),
                                                        n_pes_, wrong);
      }
      CountOther<<<64, 256, 0, side_.stream>>>(found + dest_bytes() / sizeof(u32),
                                               kGuardBytes / sizeof(u32), kClearedWord, wrong);
    });
  }

 private:
  u32 me() const { return static_cast<u32>(side_.pe); }

  const Side& side_;
  u64 bytes_;
  u32 n_pes_;
};

}  // namespace mori::bench
