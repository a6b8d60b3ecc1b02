// Multicast groups. Who is in which group stands in the user's registry, as names of empty files
// (Registry::join_group), so that any sender finds all members, and what a dead one leaves is
// removed with its slot. Senders keep a list of their own. Whoever joins or leaves raises the epoch
// in the header of each living process before it returns, and a sender that finds another epoch
// than its list's asks the registry again (group_notices.h).
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/log.h"
#include "src/device/soft/control.h"
#include "src/device/soft/group_notices.h"
#include "src/device/soft/presentation.h"
#include "src/device/soft/ud.h"

namespace verbena::soft {
namespace {

// The first epoch is not 0, which is that of a list that was never asked for.
constexpr uint64_t kFirstEpoch = 1;

bool same(const KnownGroup& known, const ibv_gid& gid, uint16_t lid) {
  return known.lid == lid && memcmp(&known.gid, &gid, sizeof(gid)) == 0;
}

std::string group_name(const ibv_gid& gid) {
  std::string name;
  for (const uint8_t byte : gid.raw) name += fmt::format("{:02x}", byte);
  return name;
}

int check_member(ibv_qp* verbs, const ibv_gid* gid) {
  if (const int error = check_valid<Qp>(verbs); error != 0) return error;
  if (as_qp(verbs).transport != Transport::kDatagram) {
    return fail(EINVAL, "soft0: only UD queue pairs can be in multicast groups");
  }
  if (!is_multicast(*gid)) {
    return fail(EINVAL,
                "soft0: the GID of a multicast group begins with the byte 0xff, or is that of a "
                "group of IPv4 (RoCE)");
  }
  return 0;
}

}  // namespace

Status join_group(Qp& qp, const ibv_gid& gid) {
  std::string name = group_name(gid);
  VERBENA_RETURN_IF_ERROR(qp.rnic->registry().join_group(name, qp.number));
  qp.rnic->group_notices().tell_all();
  std::erase(qp.multicast_groups, name);  // who joins again is in it once
  qp.multicast_groups.push_back(std::move(name));
  return {};
}

bool leave_group(Qp& qp, const ibv_gid& gid) {
  const std::string name = group_name(gid);
  if (!qp.rnic->registry().leave_group(name, qp.number)) return false;
  qp.rnic->group_notices().tell_all();
  std::erase(qp.multicast_groups, name);
  return true;
}

int attach_mcast(ibv_qp* verbs, const ibv_gid* gid, uint16_t lid) {
  if (const int error = check_member(verbs, gid); error != 0) return error;
  Qp& qp = as_qp(verbs);
  const std::lock_guard guard(qp.control);
  static_cast<void>(lid);
  const Status joined = join_group(qp, *gid);
  return joined.ok() ? 0 : fail(joined);
}

int detach_mcast(ibv_qp* verbs, const ibv_gid* gid, uint16_t) {
  if (const int error = check_member(verbs, gid); error != 0) return error;
  Qp& qp = as_qp(verbs);
  const std::lock_guard guard(qp.control);
  return leave_group(qp, *gid)
             ? 0
             : fail(EINVAL, "soft0: the queue pair is not in this multicast group");
}

void leave_groups(Qp& qp) {
  const std::lock_guard guard(qp.control);
  if (qp.multicast_groups.empty()) return;
  for (const std::string& name : qp.multicast_groups) {
    qp.rnic->registry().leave_group(name, qp.number);
  }
  qp.multicast_groups.clear();
  qp.rnic->group_notices().tell_all();
}

const std::vector<uint32_t>& Destinations::members(Rnic& rnic, const ibv_gid& gid, uint16_t lid) {
  // Acquire: who raised it stands in the registry already.
  const uint64_t epoch = kFirstEpoch + rnic.header().group_epoch.load(std::memory_order_acquire);
  auto known = std::find_if(groups_.begin(), groups_.end(), [&](const KnownGroup& group) {
    return group.epoch != 0 && same(group, gid, lid);
  });
  if (known != groups_.end() && known->epoch == epoch) return known->members;
  Result<std::vector<uint32_t>> found = rnic.registry().members_of(group_name(gid));
  if (!found.ok()) {
    // What was known stays old, so that the next send asks again.
    static const std::vector<uint32_t> nobody;
    if (!std::exchange(said_unread_, true)) {
      log_warning("soft0: cannot tell who is in a multicast group: {}", found.status().message());
    }
    return known == groups_.end() ? nobody : known->members;
  }
  if (known == groups_.end()) {
    known = groups_.begin() + next_group_;
    next_group_ = (next_group_ + 1) % kGroups;
    known->gid = gid;
    known->lid = lid;
  }
  known->members = std::move(*found);
  known->epoch = epoch;
  return known->members;
}

}  // namespace verbena::soft
