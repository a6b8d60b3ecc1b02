#include "src/job/rendezvous.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "src/job/member.h"
#include "verbena/job.h"

namespace verbena::job {

namespace {

// One of several addresses of rank 0 must not use up the time of the others.
constexpr int64_t kOneOfManyTimeoutNs = 1'500'000'000;
constexpr size_t kMissingNamed = 8;
// So long a refused job waits for ranks that the launcher has just started.
constexpr int64_t kLateRanksNs = 5'000'000'000;

std::string missing_ranks(const Mesh& mesh) {
  std::string names;
  size_t count = 0;
  for (size_t rank = 1; rank < mesh.peers.size(); ++rank) {
    if (mesh.peers[rank].has_value()) continue;
    if (++count <= kMissingNamed) names += fmt::format("{}{}", count > 1 ? ", " : "", rank);
  }
  return count > kMissingNamed ? fmt::format("{} and {} more", names, count - kMissingNamed)
                               : names;
}

// Peers that proved to know the secret, until each has said which rank it is. One that is slow
// holds up nobody else.
class Introductions {
 public:
  struct Rank {
    ControlConnection connection;
    JoinRequest request;
  };

  explicit Introductions(ControlListener& listener) : listener_(listener) {}

  // The next one that introduced itself.
  //   kTimeout       nobody else connected in time
  //   kUnavailable   the ranks that are missing may all be those that connected and stayed silent
  Result<Rank> next(size_t missing, const Deadline& deadline) {
    for (;;) {
      for (auto peer = silent_.begin(); peer != silent_.end(); ++peer) {
        Result<std::vector<std::byte>> frame = peer->connection.receive(0);
        if (frame.status().code() == StatusCode::kTimeout) continue;
        // It has had its say; who looks again for the next one must not find it again.
        ControlConnection connection = std::move(peer->connection);
        silent_.erase(peer);
        VERBENA_RETURN_IF_ERROR(frame.status());
        VERBENA_ASSIGN_OR_RETURN(JoinRequest request,
                                 decode_request(*frame, connection.peer_name()));
        return Rank{std::move(connection), std::move(request)};
      }
      const bool all_are_here = silent_.size() >= missing;
      if (!silent_.empty() &&
          (deadline.expired() || (all_are_here && silent_.back().patience.expired()))) {
        return Status(StatusCode::kUnavailable,
                      fmt::format("{} connected to {} on {} and knows the secret, but has not sent "
                                  "its rank within {} s; is its process stopped?",
                                  silent_names(), listener_.name(), host_name(),
                                  kIntroductionNs / 1'000'000'000));
      }
      Result<ControlConnection> connection = listener_.accept(
          silent_.empty() ? deadline.remaining_ns() : std::min(deadline.remaining_ns(), kSliceNs));
      if (connection.ok()) {
        silent_.push_back({std::move(*connection), Deadline(kIntroductionNs)});
      } else if (connection.status().code() != StatusCode::kTimeout || silent_.empty()) {
        return connection.status();
      }
    }
  }

 private:
  // A rank says it at once.
  static constexpr int64_t kIntroductionNs = 10'000'000'000;
  static constexpr int64_t kSliceNs = 5'000'000;

  struct Silent {
    ControlConnection connection;
    Deadline patience;
  };

  std::string silent_names() const {
    std::string names;
    for (const Silent& peer : silent_)
      names += (names.empty() ? "" : ", ") + peer.connection.peer_name();
    return names;
  }

  ControlListener& listener_;
  std::vector<Silent> silent_;  // oldest first
};

// Takes the newcomer in, if it fits.
Status seat_newcomer(const Seat& seat, const JoinRequest& request, ControlConnection& connection,
                     Mesh* mesh, std::vector<Member>* members) {
  const std::string peer = connection.peer_name();
  if (request.size != static_cast<uint32_t>(seat.size)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("rank {} on {} ({}) counts {} ranks, rank 0 counts {}; give all the "
                              "same size",
                              request.rank, request.host, peer, request.size, seat.size));
  }
  if (request.rank == 0 || request.rank >= request.size) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} ({}) also joins as rank {} of {}; each rank is needed once",
                              request.host, peer, request.rank, request.size));
  }
  if (mesh->peers[request.rank].has_value()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("rank {} was started twice: on {} and on {} ({})", request.rank,
                              mesh->hosts[request.rank], request.host, peer));
  }
  const std::string address = address_of(peer);
  (*members)[request.rank] = {is_loopback(address) ? "" : address, request.port, request.host};
  mesh->hosts[request.rank] = request.host;
  mesh->peers[request.rank] = std::move(connection);
  return {};
}

Result<ControlConnection> reach_coordinator(const std::vector<std::string>& coordinators,
                                            const JobSecret& secret, const Deadline& deadline) {
  if (coordinators.empty()) {
    return Status(StatusCode::kProtocolViolation,
                  "rank 0 left no address with the launcher; give it with --coordinator HOST:PORT");
  }
  Status last;
  for (;;) {
    for (const std::string& coordinator : coordinators) {
      VERBENA_ASSIGN_OR_RETURN(const HostAndPort parts, split_address(coordinator));
      const int64_t left_ns = deadline.remaining_ns();
      Result<ControlConnection> connection = ControlConnection::connect(
          parts.host, parts.port, secret,
          coordinators.size() == 1 ? left_ns : std::min(left_ns, kOneOfManyTimeoutNs));
      if (connection.ok()) return connection;
      last = connection.status();
      if (last.code() == StatusCode::kPermissionDenied) return last;
    }
    if (deadline.expired() || coordinators.size() <= 1) {
      return Status(last.code(),
                    fmt::format("rank 0 was not found: {}; is it started, and can this host ({}) "
                                "reach the coordinator's port?",
                                last.message(), host_name()));
    }
  }
}

// From here to each rank before this one, and from each behind it to here.
Status connect_all(const Seat& seat, const std::vector<Member>& members,
                   const std::string& coordinator_address, ControlListener& listener,
                   const JobSecret& secret, const Deadline& deadline, Mesh* mesh) {
  for (int rank = 1; rank < seat.rank; ++rank) {
    const Member& member = members[static_cast<size_t>(rank)];
    const std::string& address = member.address.empty() ? coordinator_address : member.address;
    Result<ControlConnection> connection =
        ControlConnection::connect(address, member.port, secret, deadline.remaining_ns());
    if (!connection.ok()) {
      return Status(connection.status().code(),
                    fmt::format("rank {} cannot reach rank {} on {}: {}", seat.rank, rank,
                                member.host, connection.status().message()));
    }
    VERBENA_RETURN_IF_ERROR(connection->send(encode(
        JoinRequest{static_cast<uint32_t>(seat.rank), static_cast<uint32_t>(seat.size), 0, {}})));
    mesh->peers[static_cast<size_t>(rank)] = std::move(*connection);
  }
  Introductions introductions(listener);
  for (int missing = seat.size - 1 - seat.rank; missing > 0; --missing) {
    Result<Introductions::Rank> rank = introductions.next(static_cast<size_t>(missing), deadline);
    if (rank.status().code() == StatusCode::kTimeout) {
      return Status(StatusCode::kTimeout,
                    fmt::format("{} ranks did not connect to rank {} on {}: {}; can they reach "
                                "it, or does a firewall stand between?",
                                missing, seat.rank, host_name(), rank.status().message()));
    }
    VERBENA_RETURN_IF_ERROR(rank.status());
    const JoinRequest& request = rank->request;
    if (request.rank <= static_cast<uint32_t>(seat.rank) ||
        request.rank >= static_cast<uint32_t>(seat.size) || mesh->peers[request.rank].has_value()) {
      return Status(StatusCode::kProtocolViolation,
                    fmt::format("{} connected as rank {}, which is not expected here",
                                rank->connection.peer_name(), request.rank));
    }
    mesh->peers[request.rank] = std::move(rank->connection);
  }
  return {};
}

Mesh empty_mesh(const Seat& seat) {
  Mesh mesh;
  mesh.peers.resize(static_cast<size_t>(seat.size));
  mesh.hosts.resize(static_cast<size_t>(seat.size));
  mesh.hosts[static_cast<size_t>(seat.rank)] = host_name();
  return mesh;
}

void refuse(ControlConnection& peer, const Status& why) {
  static_cast<void>(peer.send(encode(Result<std::vector<Member>>(why))));
}

}  // namespace

void refuse_all(Mesh& mesh, const Status& why) {
  for (std::optional<ControlConnection>& peer : mesh.peers) {
    if (peer) refuse(*peer, why);
  }
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

Result<Mesh> gather_ranks(const Seat& seat, ControlListener& listener, const Deadline& deadline) {
  Mesh mesh = empty_mesh(seat);
  std::vector<Member> members(static_cast<size_t>(seat.size));
  members[0].host = host_name();
  Introductions introductions(listener);
  int came = 0;
  const auto collect = [&]() -> Status {
    while (came < seat.size - 1) {
      Result<Introductions::Rank> rank =
          introductions.next(static_cast<size_t>(seat.size - 1 - came), deadline);
      if (rank.status().code() == StatusCode::kTimeout) {
        return Status(
            StatusCode::kTimeout,
            fmt::format("{} of {} ranks joined in time; rank {} did not: is it started, "
                        "and can its host reach {} on {}?",
                        came + 1, seat.size, missing_ranks(mesh), listener.name(), host_name()));
      }
      if (rank.status().code() == StatusCode::kUnavailable) {
        return Status(
            StatusCode::kUnavailable,
            fmt::format("rank {} did not join: {}", missing_ranks(mesh), rank.status().message()));
      }
      VERBENA_RETURN_IF_ERROR(rank.status());
      ++came;
      const Status seated = seat_newcomer(seat, rank->request, rank->connection, &mesh, &members);
      if (!seated.ok()) refuse(rank->connection, seated);
      VERBENA_RETURN_IF_ERROR(seated);
    }
    return {};
  };
  const Status collected = collect();
  if (!collected.ok()) {
    refuse_all(mesh, collected);
    // Those that are a little late are to know why, too; after a time-out all have had their time.
    const Deadline late(collected.code() == StatusCode::kTimeout ? 0 : kLateRanksNs);
    while (came < seat.size - 1) {
      Result<Introductions::Rank> rank = introductions.next(SIZE_MAX, late);
      if (rank.ok()) {
        ++came;
        refuse(rank->connection, collected);
      } else if (late.expired() || rank.status().code() == StatusCode::kLimitExceeded) {
        break;
      }
      // Else one more has died.
    }
    return collected;
  }
  const std::vector<std::byte> answer = encode(Result<std::vector<Member>>(members));
  for (std::optional<ControlConnection>& peer : mesh.peers) {
    if (peer) VERBENA_RETURN_IF_ERROR(peer->send(answer));
  }
  return mesh;
}

Result<Mesh> join_ranks(const Seat& seat, const std::vector<std::string>& coordinators,
                        const JobSecret& secret, const Deadline& deadline) {
  Mesh mesh = empty_mesh(seat);
  VERBENA_ASSIGN_OR_RETURN(ControlConnection coordinator,
                           reach_coordinator(coordinators, secret, deadline));
  const std::string peer = coordinator.peer_name();
  const std::string address = address_of(peer);
  VERBENA_ASSIGN_OR_RETURN(
      ControlListener listener,
      ControlListener::listen(address.find(':') != std::string::npos ? "::" : "0.0.0.0", 0,
                              secret));
  VERBENA_RETURN_IF_ERROR(coordinator.send(
      encode(JoinRequest{static_cast<uint32_t>(seat.rank), static_cast<uint32_t>(seat.size),
                         listener.port(), host_name()})));
  VERBENA_ASSIGN_OR_RETURN(const std::vector<std::byte> frame,
                           coordinator.receive(deadline.remaining_ns()));
  VERBENA_ASSIGN_OR_RETURN(const std::vector<Member> members,
                           decode_members(frame, static_cast<uint32_t>(seat.size), peer));
  for (size_t rank = 0; rank < members.size(); ++rank) mesh.hosts[rank] = members[rank].host;
  mesh.peers[0] = std::move(coordinator);
  const Status connected = connect_all(seat, members, address, listener, secret, deadline, &mesh);
  if (!connected.ok()) refuse_all(mesh, connected);
  VERBENA_RETURN_IF_ERROR(connected);
  return mesh;
}

}  // namespace verbena::job
