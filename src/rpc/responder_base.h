// What the responders of all protocols are beside their messages: their connections, and how these
// begin and end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/assert.h"
#include "src/base/kept_status.h"
#include "src/connect/failure.h"
#include "src/connect/peer_watch.h"
#include "src/rpc/design_choice.h"
#include "src/rpc/responder_control.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

// One connection. A protocol's own derives from it, and has stop(): from then on its requests find
// nobody.
struct ResponderConnection {
  explicit ResponderConnection(ControlConnection& control_connection)
      : control(&control_connection) {}

  uint32_t number = 0;
  ConnectionStatistics statistics;
  KeptStatus status;  // not ok: it has ended

  connect::SilenceCheck silence;
  ControlConnection* control;

  std::string peer() const { return "the requester " + control->peer_name(); }
};

template <typename Connection>
class ResponderBase : public Responder {
 public:
  ~ResponderBase() override { drop_connections(); }

  uint32_t latest_connection() const override { return latest_; }
  uint32_t connections() const override { return static_cast<uint32_t>(alive_.size()); }
  const Status& status() const override { return status_; }
  const Status& status(uint32_t connection) const override { return at(connection).status.get(); }
  const ConnectionStatistics& statistics(uint32_t connection) const override {
    return at(connection).statistics;
  }
  MarkLayout mark_layout() const override { return design_.layout; }
  DesignChoice design() const override {
    return responder_choice(device_->info(), design_, options_);
  }
  // Where a choice at run time led to this design.
  void set_reason(std::string why) { design_.why = std::move(why); }

 protected:
  ResponderBase(Protocol protocol, MarkLayout layout, const Device& device,
                const ProtectionDomain& domain, const ResponderOptions& options)
      : device_(&device),
        domain_(&domain),
        options_(options),
        design_{protocol, layout, why_asked(layout, layout)} {}

  // For destructors of derived classes, too: what these share between connections must outlive
  // them.
  void drop_connections() {
    // A requester that waits for a response learns it from nothing else.
    for (Connection* connection : alive_) connection->control->hang_up();
    alive_.clear();
    ended_.clear();
    connections_.clear();
  }

  const Connection& at(uint32_t connection) const {
    VERBENA_ASSERT(connection < connections_.size());
    return *connections_[connection];
  }

  // The number for one connection more: of one that has ended, or a new one.
  Result<uint32_t> free_number() const {
    const bool none_ended = alive_.size() == connections_.size();
    if (none_ended && connections_.size() < options_.max_connections) {
      return static_cast<uint32_t>(connections_.size());
    }
    for (uint32_t number = 0; number < connections_.size(); ++number) {
      if (!connections_[number]->status.ok()) return number;
    }
    if (connections_.size() >= options_.max_connections) {
      return too_many_connections(options_.max_connections);
    }
    return static_cast<uint32_t>(connections_.size());
  }

  // Takes in a connection that is ready for messages.
  void add(std::unique_ptr<Connection> connection) {
    const uint32_t number = connection->number;
    latest_ = number;
    if (number == connections_.size()) {
      connections_.push_back(std::move(connection));
    } else {
      ended_.push_back(std::exchange(connections_[number], std::move(connection)));
    }
    alive_.push_back(connections_[number].get());
    status_ = Status::ok_status();
  }

  // Ends a connection of `alive_`.
  void end(Connection& connection, Status why) {
    connection.status = why;
    std::erase(alive_, &connection);
    status_ = alive_.empty() ? std::move(why) : Status::ok_status();
    connection.stop();
    // A requester that waits for a response has nothing on its way, whose failure would tell it.
    connection.control->hang_up();
  }

  // Whether a silent requester has gone, by its control connection.
  bool peer_is_gone(Connection& connection) {
    return connection.silence.gone(connection.statistics.requests,
                                   [&connection] { return connection.control->peer_closed(); });
  }

  const Device* device_;
  const ProtectionDomain* domain_;
  ResponderOptions options_;
  std::vector<std::unique_ptr<Connection>> connections_;  // by number
  std::vector<Connection*> alive_;
  // Replaced ones. A queue pair takes its completions along when it is destroyed, and with them the
  // numbers of the shared receives that they consumed: so it stays until they have been taken.
  std::vector<std::unique_ptr<Connection>> ended_;
  uint32_t latest_ = 0;
  connect::PeerWatch watch_;
  Status status_;

 private:
  ChosenDesign design_;
};

}  // namespace verbena::rpc
