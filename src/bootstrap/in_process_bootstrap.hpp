// Bootstrap for ranks that are threads of one process, or objects of one test.
#pragma once

#include <memory>
#include <vector>

#include "bootstrap/bootstrap.hpp"

namespace mori::shmem {

/// One rank of a world that lives in one process. Destruction without `Close()` counts as a loss.
class InProcessBootstrap final : public Bootstrap {
 public:
  /// The ends of all `size` ranks, by rank; `size` is at least 1.
  static std::vector<std::unique_ptr<Bootstrap>> MakeAll(int size);

  ~InProcessBootstrap() override;

  int rank() const override { return rank_; }
  int size() const override;
  Result<std::vector<Bytes>> AllGather(ByteView mine, const Deadline& deadline) override;
  void Abort(const Status& why) override;
  Status Health() const override;
  void Observe(Observer observer) override;
  void Close() override;

 private:
  class Hub;

  InProcessBootstrap(std::shared_ptr<Hub> hub, int rank);

  std::shared_ptr<Hub> hub_;
  int rank_;
  Status failed_;  ///< of the first exchange that failed: what later ones return
};

}  // namespace mori::shmem
