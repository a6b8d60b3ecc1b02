// Compiled design points: the choice of protocol, mark layout and receive queues as a template
// argument, so that a message passes no branch and no virtual call for it ("patterns" 4).
//
//   // The design is known when the program is built:
//   using Design = DesignPoint<Protocol::kWriteWrite, MarkLayout::kLastBit>;
//   auto requester = Design::Requester::create(device, domain, control, options);
//
//   // It is chosen when the program starts: once, outside of every loop.
//   with_design_point(protocol, layout, [&]<typename Design>() {
//     auto client = connect_client<Design>(device, domain, control, options);
//     run(**client);                                // compiled for each design point
//   });
//
// A design has kProtocol and kLayout; its Requester and Responder have the members of verbena/rpc.h
// without virtual calls. Only what namespace verbena itself has is the interface: code that is
// compiled into programs has to be installed, so what lies below verbena/detail/ and in namespaces
// such as verbena::rpc can be seen, but changes between releases.
#pragma once

#include <memory>
#include <utility>

#include "src/rpc/designs.h"  // NOLINT(conventions): has to be compiled in, see above
#include "verbena/client.h"
#include "verbena/dispatcher.h"
#include "verbena/server.h"

namespace verbena {

template <Protocol kProtocol, MarkLayout kLayout = MarkLayout::kLastBit,
          ReceiveQueues kReceives = ReceiveQueues::kShared>
using DesignPoint = typename rpc::DesignAt<kProtocol, kLayout, kReceives>::Type;

// Calls `function` with the design as its template argument, and returns what it does. Each design
// is compiled: keep what does not depend on it outside. (protocol, layout, function), or with the
// responder's choice (protocol, layout, receive queues, function).
using rpc::with_design_point;

// Client::connect() for a compiled design point, which decides the protocol and the layout whatever
// the options say.
template <typename Design>
Result<std::unique_ptr<BasicClient<typename Design::Requester>>> connect_client(
    const Device& device, const ProtectionDomain& domain, ControlConnection& control,
    ClientOptions options) {
  options.protocol = Design::kProtocol;
  options.layout = Design::kLayout;
  VERBENA_ASSIGN_OR_RETURN(const RequesterOptions requester_options,
                           internal::requester_options(options));
  VERBENA_ASSIGN_OR_RETURN(auto responses, internal::response_memory(options));
  VERBENA_ASSIGN_OR_RETURN(auto requester,
                           Design::Requester::create(device, domain, control, requester_options));
  return std::make_unique<BasicClient<typename Design::Requester>>(std::move(requester), options,
                                                                   std::move(responses));
}

// Server::create() for a compiled design point.
template <typename Design>
Result<std::unique_ptr<BasicServer<typename Design::Responder>>> create_server(
    const Device& device, const ProtectionDomain& domain, ServerOptions options) {
  options.protocol = Design::kProtocol;
  options.layout = Design::kLayout;
  VERBENA_ASSIGN_OR_RETURN(const ResponderOptions responder_options,
                           internal::ServerMemory::responder_options(options));
  VERBENA_ASSIGN_OR_RETURN(auto responder,
                           Design::Responder::create(device, domain, responder_options));
  VERBENA_ASSIGN_OR_RETURN(auto memory, internal::ServerMemory::create(options));
  return std::make_unique<BasicServer<typename Design::Responder>>(std::move(responder),
                                                                   std::move(memory));
}

}  // namespace verbena
