// A domain: an open device, and the lock of all objects that are made of it.
#pragma once

#include <rdma/fi_domain.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/ofi/fid.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/message.h"
#include "verbena/status.h"

namespace verbena::ofi {

class WaitPoint;
struct Endpoint;
struct RegisteredMemory;

struct Domain : fid_domain {
  using Handle = fid_domain;
  Domain(Device opened, ProtectionDomain made, JobSecret known, bool needs_lock)
      : fid_domain{},
        device(std::move(opened)),
        protection_domain(std::move(made)),
        secret(std::move(known)),
        lock(needs_lock) {}

  Device device;
  ProtectionDomain protection_domain;
  JobSecret secret;
  DomainLock lock;
  // Of all endpoints. Keys are the program's, and addresses count from the first byte, unless its
  // memory mode says otherwise.
  const std::shared_ptr<ExposedMemory> exposed = std::make_shared<ExposedMemory>();
  bool chooses_keys = false;
  bool virtual_addresses = false;
  // Objects that were made of it and not closed: it cannot be closed before them.
  std::atomic<uint32_t> users{0};
  // Completion queues that were opened to be slept at, and those that were not: endpoints that are
  // opened after them raise events, or save them.
  std::atomic<uint32_t> sleeping_queues{0};
  std::atomic<uint32_t> polled_queues{0};
  // All that are open. Under the lock.
  std::vector<Endpoint*> endpoints;
  std::vector<Endpoint*> enabled;  // of these
  // Memory of which a counter counts what peers do there.
  std::vector<RegisteredMemory*> counted;
  // Where threads sleep now. Each is woken by events of its messengers, which another thread may
  // take: whoever has taken some wakes them all. Under the lock.
  std::vector<WaitPoint*> asleep;
};

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context);

// Logs what `call` met, and returns the libfabric error that comes nearest.
int report(const char* call, const Status& status);
// The same of an object, such as "a counter", that is not of the domain of the one it is bound to:
// their locks, addresses and keys have nothing to do with each other.
int refuse_other_domain(const char* call, const char* object, const char* bound_to);

}  // namespace verbena::ofi
