#include "bootstrap/factory.hpp"

#include "bootstrap/socket_bootstrap.hpp"

namespace mori::shmem {

Result<std::unique_ptr<Bootstrap>> MakeBootstrap(const Rendezvous& rendezvous,
                                                 const BootstrapOptions& options) {
  MORI_ASSIGN_OR_RETURN(std::unique_ptr<Bootstrap> made,
                        SocketBootstrap::Connect(rendezvous, options));
  return made;
}

}  // namespace mori::shmem
