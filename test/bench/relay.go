package main

import (
	"context"
	"errors"
	"io"
	"net"

	"google.golang.org/grpc"
)

// relay passes the messages of each gRPC stream on to a stream of its own, for ever,
// and decodes none: the least that a proxy can cost that is made of grpc-go. What an
// agent costs beyond that is its own doing.
func relay(listen, to string) error {
	lis, err := net.Listen("unix", listen)
	if err != nil {
		return err
	}
	up, err := connect(dialer(to))
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	return relayServer(up).Serve(lis)
}

// relayServer opens the method of each stream at conn. Of metadata it passes on
// nothing, which nobody here looks at.
func relayServer(conn *grpc.ClientConn) *grpc.Server {
	handle := func(_ any, down grpc.ServerStream) error {
		ctx, cancel := context.WithCancel(down.Context())
		defer cancel()
		method, _ := grpc.MethodFromServerStream(down)
		up, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
		if err != nil {
			return err
		}
		go func() { // it ends with down, when this handler returns at the latest
			_ = forward(up, down)
			_ = up.CloseSend()
		}()
		return forward(down, up)
	}
	return grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.MaxRecvMsgSize(maxMessage), grpc.UnknownServiceHandler(handle))
}

// forward passes messages on until the stream that they come from ends, which is no
// error if its peer had nothing more to say.
func forward(to interface{ SendMsg(m any) error }, from interface{ RecvMsg(m any) error }) error {
	for {
		var f frame
		if err := from.RecvMsg(&f); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		// The reference that f has to its data goes to gRPC, which frees it when it is sent.
		if err := to.SendMsg(f.data); err != nil {
			return err
		}
	}
}
