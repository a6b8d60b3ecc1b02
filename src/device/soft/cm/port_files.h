// Which ports of the connection manager are taken, by whom, and who listens: one small file per
// port in the directory of this user's software RNICs (registry.h).
//
// A file "cm.SPACE.PORT" has a record for each that is bound to the port. It is read and written
// under a lock that the kernel drops when its holder dies. A record counts only while its process
// lives, which the registry tells; those of dead ones are removed by whoever meets them. So nothing
// has to be undone after a death.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/device/soft/cm/endpoint.h"
#include "verbena/status.h"

namespace verbena::soft::cm {

// A process, also told from a later one in the same slot.
struct PortOwner {
  uint32_t slot = 0;
  int32_t pid = 0;
  uint64_t start_time_ticks = 0;
  bool operator==(const PortOwner&) const = default;
};

struct PortRecord {
  uint32_t magic;
  uint32_t id;  // of the owner's identifiers
  PortOwner owner;
  uint16_t family;
  uint8_t listens;
  uint8_t reusable;  // shares the port with others that say so too; not once it listens
  uint8_t only_ipv6;
  uint8_t reserved[3];
  uint32_t scope;
  uint8_t address[16];
  uint32_t reserved2;
};
static_assert(sizeof(PortRecord) == 56);

struct PortWish {
  uint16_t space = 0;
  uint32_t id = 0;
  Endpoint endpoint;  // port 0: any that is free
  bool reusable = false;
  bool only_ipv6 = false;
};

Status nobody_listens();

class PortFiles {
 public:
  // `lives` is false only of an owner whose process surely is gone: its records are removed. The
  // directory stays the caller's.
  PortFiles(int directory_fd, PortOwner self, std::function<bool(const PortOwner&)> lives);

  // 0, or an errno value: EADDRINUSE, EBUSY if a stopped process holds the file. The port that was
  // taken is in wish.endpoint.
  int bind(PortWish& wish);
  // EADDRINUSE if another one shares the port: as the kernel's, a listener has it alone.
  int listen(const PortWish& bound);
  // What `bound` says by now of sharing and of IPv4.
  int set_options(const PortWish& bound);
  // Where a stopped process holds the file, or no descriptor is free, the port stays taken, and
  // owes() is true until release_owed(), which does not wait, or anything else got at the file.
  void release(const PortWish& bound);
  void release_owed();
  bool owes() const { return !owed_.empty(); }

  // Who listens there: with the very address, else with a wildcard; kUnavailable if nobody does,
  // kLimitExceeded without a file descriptor left. A stopped process that holds the file delays the
  // answer by 50 ms.
  Result<PortRecord> listener(uint16_t space, const Endpoint& target);

  // Removes what dead processes left.
  void clean_up();

 private:
  using Change = std::function<int(std::vector<PortRecord>&)>;
  static constexpr uint64_t kLockPatienceMs = 2000;
  int change(uint16_t space, uint16_t port, const Change& apply,
             uint64_t patience_ms = kLockPatienceMs);
  int take(PortWish& wish, uint16_t port);
  bool is_own(const PortRecord& record, uint32_t id) const;
  bool is_owed(uint16_t space, uint16_t port, const PortRecord& record) const;
  void remove_owed(uint16_t space, uint16_t port, uint64_t patience_ms);
  void forget_owed(uint16_t space, uint16_t port);

  int directory_fd_;
  PortOwner self_;
  std::function<bool(const PortOwner&)> lives_;
  std::vector<PortWish> owed_;  // released, while their records are still there
};

}  // namespace verbena::soft::cm
